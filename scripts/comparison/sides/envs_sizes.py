"""Sizes of the comparison of environments."""

STEPS = {1: 20_000, 32: 2_000, 256: 500, 1024: 250}  # of each maze in a round, by the number of mazes
PARTICLE_STEPS = 100
