"""DTLZ, multi-objective problems with any number of objectives, negated to be maximized.

Source: Deb, Thiele, Laumanns & Zitzler 2002, Scalable multi-objective optimization test problems, section 4.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import require, require_int
from evorl.problems.box import sample_uniform
from evorl.types import Key


@dataclass(frozen=True)
class DTLZ:
    """Problem DTLZ1 or DTLZ2, negated to be maximized.

    The first num_objectives - 1 variables move a point along the front, and the other ones determine its
    distance g from the front.

    - DTLZ1: a flat front, on which the objectives sum to -1/2, behind 11^distances - 1 local fronts. The
      paper uses 5 distances.
    - DTLZ2: a part of a sphere of radius 1, an eighth for three objectives. The paper uses 10 distances.

    Args:
        number: Number of the problem in the paper, 1 or 2.
        num_objectives: Number of objectives, at least 2.
        distances: Number of variables that determine the distance from the front.
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
        """Return the names of the paper's functions, negated: -f1, -f2, ..."""
        return tuple(f"-f{i + 1}" for i in range(self.num_objectives))

    def evaluate(self, key: Key, params: Float[Array, " size"]) -> Float[Array, " objectives"]:
        """Return the objectives.

        The products along the front are cumulative: the first objective contains all variables along the
        front, the last one only the first variable.
        """
        del key
        along, across = params[: self.num_objectives - 1], params[self.num_objectives - 1 :] - 0.5
        if self.number == 1:
            g = 100 * (self.distances + (across**2 - jnp.cos(20 * jnp.pi * across)).sum())
            taken, left, scale = along, 1 - along, 0.5 * (1 + g)
        else:
            taken, left = jnp.cos(along * jnp.pi / 2), jnp.sin(along * jnp.pi / 2)
            scale = 1 + (across**2).sum()
        products = jnp.append(1.0, jnp.cumprod(taken))  # products of the first 0, 1, 2, ... variables
        return -scale * (products * jnp.append(left, 1.0))[::-1]
