"""Leagues of policies: payoff tables, meta-solvers, exact values, ratings."""
