"""ZDT, multi-objective problems with two objectives, negated to be maximized.

Source: Zitzler, Deb & Thiele 2000, Comparison of multiobjective evolutionary algorithms,
doi:10.1162/106365600568202.
"""

from dataclasses import dataclass
from typing import TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import require, require_int
from evorl.problems.box import sample_uniform
from evorl.types import Bound, Key

Row: TypeAlias = Float[Array, " size"]


@dataclass(frozen=True)
class ZDT:
    """Problem ZDT1, ZDT2, ZDT3, ZDT4 or ZDT6 with the objectives -f1 and -f2 = -g * h(f1, f1 / g).

    The first variable moves a point along the front, and the other ones determine its distance g from the
    front. ZDT5 is defined on bit strings and not included.

    - ZDT1: a convex front.
    - ZDT2: a concave front.
    - ZDT3: a front in five pieces.
    - ZDT4: 21^(size - 1) local fronts. The paper uses size 10.
    - ZDT6: solutions become fewer towards the front. The paper uses size 10.

    Args:
        number: Number of the problem in the paper: 1, 2, 3, 4 or 6.
        size: Number of variables, at least 2.
    """

    number: int = 1
    size: int = 30

    objective_names = ("-f1", "-f2")

    def __post_init__(self) -> None:
        require(self.number in (1, 2, 3, 4, 6), "number", self.number, "must be 1, 2, 3, 4 or 6")
        require_int("size", self.size, 2)

    @property
    def bounds(self) -> tuple[Bound, Bound]:
        others = self.size - 1
        return ((0.0, *(-5.0,) * others), (1.0, *(5.0,) * others)) if self.number == 4 else (0.0, 1.0)

    def init(self, key: Key) -> Row:
        return sample_uniform(key, self.bounds, self.size)

    def evaluate(self, key: Key, params: Row) -> Float[Array, "2"]:
        del key
        x, others = params[0], params[1:]
        f1 = x if self.number != 6 else 1 - jnp.exp(-4 * x) * jnp.sin(6 * jnp.pi * x) ** 6
        g = self.distance(others)
        return -jnp.stack([f1, g * self.shape(f1, f1 / g)])

    def distance(self, others: Row) -> Array:
        """Return g, which measures the distance from the front and is 1 on it.

        Args:
            others: All variables but the first, shape [size - 1].
        """
        if self.number == 4:
            return 1 + 10 * len(others) + (others**2 - 10 * jnp.cos(4 * jnp.pi * others)).sum()
        mean = others.mean()
        return 1 + 9 * (mean**0.25 if self.number == 6 else mean)

    def shape(self, f1: Array, ratio: Array) -> Array:
        """Return h, which determines the shape of the front.

        Args:
            f1: First function, shape [].
            ratio: f1 / g, shape [].
        """
        match self.number:
            case 2 | 6:
                return 1 - ratio**2
            case 3:
                return 1 - jnp.sqrt(ratio) - ratio * jnp.sin(10 * jnp.pi * f1)
            case _:
                return 1 - jnp.sqrt(ratio)
