"""Sizes of the comparison of multi-objective search."""

MEMBERS, DIRECTIONS, GENERATIONS, REFERENCE = 200, 105, 250, 1.1
