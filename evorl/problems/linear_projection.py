"""The sphere of CMA-ME, whose descriptors are sums."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import require_int
from evorl.types import Key, QDEvaluation

EDGE = 5.12  # of the sphere, beyond which a number counts less for the descriptor
SHIFT = 0.4 * EDGE  # where the optimum lies


@dataclass(frozen=True)
class LinearProjection:
    """A sphere around 2.048 in all its numbers, from 100 there to 0 at -5.12, described by the sums of both halves.

    Fontaine et al. 2020, arXiv:1912.02400, section 5: a number x beyond 5.12 counts 5.12 / x in the descriptor [2], so
    that each is within 5.12 times half the size. Most of what is drawn at random lies near 0 in it.
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
