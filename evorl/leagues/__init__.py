"""Populations of players: payoffs, meta-solvers, exact values and ratings."""
