"""Test functions of the comparison of evolution strategies, for arrays of NumPy, JAX, and PyTorch."""

from typing import Any

import numpy as np

GENERATIONS = {10: 500, 100: 100, 1000: 10}  # of a round of CMA-ES, by dimension
STEPS = {1_000: 200, 10_000: 40, 100_000: 8}  # of a round of OpenES, by the number of parameters
MEMBERS, LEARNING_RATE, STD = 128, 0.01, 0.02
START, SIGMA, TARGET = 0.0, 0.5, 1e-6
BBOB_RANGE, BBOB_SIGMA, BBOB_TARGET = 4.0, 2.0, 1e-2


def count_members(n: int) -> int:
    """Return the default population size of CMA-ES."""
    return 4 + int(3 * np.log(n))


def sphere(x: Any) -> Any:
    return (x**2).sum(-1)


def rosenbrock(x: Any) -> Any:
    return (100 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1 - x[..., :-1]) ** 2).sum(-1)


def limit_evaluations(n: int) -> int:
    """Return after how many evaluations a search is given up."""
    return 100 * n**2
