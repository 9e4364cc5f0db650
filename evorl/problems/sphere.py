"""Sphere function."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import require, require_int
from evorl.problems.box import sample_uniform
from evorl.types import Key


@dataclass(frozen=True)
class Sphere:
    """Sphere function: the negated squared distance from 0.

    Args:
        size: Number of parameters.
        reach: The bounds are -reach and reach for each parameter.
    """

    size: int = 10
    reach: float = 5.12

    def __post_init__(self) -> None:
        require_int("size", self.size)
        require(self.reach > 0, "reach", self.reach, "must be above 0")

    @property
    def bounds(self) -> tuple[float, float]:
        return -self.reach, self.reach

    def init(self, key: Key) -> Float[Array, " size"]:
        return sample_uniform(key, self.bounds, self.size)

    def evaluate(self, key: Key, params: Float[Array, " size"]) -> Float[Array, ""]:
        del key
        return -jnp.square(params).sum()
