"""Any number of objectives, beside a distance g from the front; negated, to be maximized.

Deb, Thiele, Laumanns & Zitzler 2002, Scalable multi-objective optimization test problems, section 4.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import require, require_int
from evorl.problems.box import sample_uniform
from evorl.types import Key


@dataclass(frozen=True)
class DTLZ:
    """Problem 1 or 2 of the paper, of num_objectives - 1 variables along the front and `distances` across it.

    1: a flat front, whose objectives sum to -1/2, behind 11^distances - 1 local ones, 5 distances in the paper;
    2: an eighth of a sphere of radius 1, 10 distances.
    """

    number: int = 2
    num_objectives: int = 3
    distances: int = 10

    bounds = (0.0, 1.0)

    def __post_init__(self) -> None:
        require(self.number in (1, 2), "number", self.number, "must be 1 or 2")
        require_int("num_objectives", self.num_objectives, 2)
        require_int("distances", self.distances)

    def init(self, key: Key) -> Float[Array, " size"]:
        return sample_uniform(key, self.bounds, self.num_objectives - 1 + self.distances)

    @property
    def objective_names(self) -> tuple[str, ...]:
        """The functions of the paper, negated."""
        return tuple(f"-f{i + 1}" for i in range(self.num_objectives))

    def evaluate(self, key: Key, params: Float[Array, " size"]) -> Float[Array, " objectives"]:
        """By recursion along the front's variables: the first objective takes all of them, the last only the first."""
        del key
        along, across = params[: self.num_objectives - 1], params[self.num_objectives - 1 :] - 0.5
        if self.number == 1:
            g = 100 * (self.distances + (across**2 - jnp.cos(20 * jnp.pi * across)).sum())
            taken, left, scale = along, 1 - along, 0.5 * (1 + g)
        else:
            taken, left = jnp.cos(along * jnp.pi / 2), jnp.sin(along * jnp.pi / 2)
            scale = 1 + (across**2).sum()
        products = jnp.append(1.0, jnp.cumprod(taken))  # of no variable, the first, the first two, ...
        return -scale * (products * jnp.append(left, 1.0))[::-1]
