"""Sphere function of CMA-ME, with sums of the parameters as descriptors."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import require_int
from evorl.types import Key, QDEvaluation

EDGE = 5.12  # beyond this bound, a parameter counts less in the descriptor
SHIFT = 0.4 * EDGE  # position of the optimum


@dataclass(frozen=True)
class LinearProjection:
    """Sphere function with the sums of both halves of the parameters as descriptor.

    Fitness is 100 at the optimum, 2.048 in all parameters, and 0 at -5.12 in all parameters. In the
    descriptor [2], a parameter x beyond 5.12 in absolute value counts as 5.12 / x, so that each sum is at
    most 5.12 * size / 2 in absolute value. The descriptors of random points are concentrated near 0.

    Args:
        size: Number of parameters, at least 2.

    Source: Fontaine et al. 2020, arXiv:1912.02400, section 5.
    """

    size: int = 100

    bounds = (-float("inf"), float("inf"))

    def __post_init__(self) -> None:
        require_int("size", self.size, 2)

    def init(self, key: Key) -> Float[Array, " size"]:
        del key
        return jnp.zeros(self.size)

    def evaluate(self, key: Key, params: Float[Array, " size"]) -> QDEvaluation:
        del key
        worst = self.size * (EDGE + SHIFT) ** 2
        fitness = 100 * (1 - ((params - SHIFT) ** 2).sum() / worst)
        within = jnp.where(jnp.abs(params) <= EDGE, params, EDGE / jnp.where(params == 0, 1.0, params))
        half = self.size // 2
        return QDEvaluation(fitness, jnp.stack([within[:half].sum(), within[half:].sum()]))
