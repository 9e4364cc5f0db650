"""Search within bounds: an unbounded space in which evolvers search, and its smooth map to a box."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from evorl.errors import require
from evorl.types import Bound, Params

MARGIN = 0.05  # of a bound, pycma's


class Edges(NamedTuple):
    """The numbers of a box, each [] or [size]."""

    low: np.ndarray
    high: np.ndarray
    low_margin: np.ndarray  # width of the margin at low
    high_margin: np.ndarray  # and at high


def reflect(x: Array, low: Any, high: Any) -> Array:
    """Reflect numbers at the ends of [low, high], as often as needed; an end that is infinite reflects nothing."""
    up, down = jnp.abs(x - low), jnp.abs(high - x)  # distances from the ends
    width = jnp.where(jnp.isfinite(high - low) & (high > low), high - low, 1.0)
    both = low + jnp.abs(jnp.mod(x - low + width, 2 * width) - width)
    one = jnp.where(jnp.isfinite(low), low + up, jnp.where(jnp.isfinite(high), high - down, x))
    reflected = jnp.where(jnp.isfinite(low) & jnp.isfinite(high), both, one)
    return jnp.where((x >= low) & (x <= high), x, jnp.clip(reflected, low, high))


@dataclass(frozen=True)
class BoundTransform:
    """Bounds of the numbers of parameters, and a space without bounds to search in their place.

    An evolver that is told the fitness of clipped points sees a function that is flat outside of the bounds: where the
    optimum lies on one, its mean walks away and its step size grows without limit. `fold` maps its points smoothly into
    the box instead, so that it searches a function without bounds: the identity but for a margin at each bound, there
    quadratic, and periodic outside. It is the boundary transformation of Hansen's pycma (`BoundTransform`), of which
    half of a margin lies on either side of its bound: a twentieth of the bound, or of 1 where that is more, and at most
    half of the box.

    low and high are numbers, or one for each number of the parameters in the order of their rows; infinite where there
    is no bound. Raises OptionError unless low is below high.
    """

    low: Bound
    high: Bound

    def __post_init__(self) -> None:
        low, high = (np.asarray(bound, np.float32) for bound in (self.low, self.high))
        require(bool(np.all(low < high)), "bounds", f"{low.tolist()}, {high.tolist()}", "the first must be the lower")

    @property
    def is_bounded(self) -> bool:
        """Whether there is any bound."""
        return bool(np.isfinite(self.edges.low).any() or np.isfinite(self.edges.high).any())

    @cached_property
    def edges(self) -> Edges:
        """The bounds and the margins at them, in float32."""
        low, high = np.broadcast_arrays(*(np.asarray(bound, np.float64) for bound in (self.low, self.high)))

        def margin(bound: np.ndarray) -> np.ndarray:
            width = np.minimum((high - low) / 2, MARGIN * np.maximum(np.abs(bound), 1))
            return np.where(np.isfinite(bound), np.maximum(width, 1e-30), 1)

        return Edges(*(x.astype(np.float32) for x in (low, high, margin(low), margin(high))))

    def clip(self, params: Params) -> Params:
        """Parameters, each number at the nearest that the bounds allow."""
        return _map_raveled(lambda x: jnp.clip(x, self.edges.low, self.edges.high), params)

    def fold(self, params: Params) -> Params:
        """Parameters within the bounds, of any point that is searched."""
        return _map_raveled(self.fold_array, params)

    def unfold(self, params: Params) -> Params:
        """The point to search at for parameters within the bounds, which `fold` maps to them."""
        return _map_raveled(self.unfold_array, params)

    def fold_array(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """fold of numbers, of which the last axis are those of the parameters."""
        low, high, below, above = self.edges
        x = reflect(x, low - below, high + above)
        y = jnp.where(x < low + below, low + (x - (low - below)) ** 2 / (4 * below), x)
        y = jnp.where(x > high - above, high - (high + above - x) ** 2 / (4 * above), y)
        return jnp.clip(y, low, high)

    def unfold_array(self, y: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """unfold of numbers, of which the last axis are those of the parameters."""
        low, high, below, above = self.edges
        y = jnp.clip(y, low, high)
        x = jnp.where(y < low + below, low - below + 2 * jnp.sqrt(below * jnp.maximum(y - low, 0)), y)
        return jnp.where(y > high - above, high + above - 2 * jnp.sqrt(above * jnp.maximum(high - y, 0)), x)


def _map_raveled(function: Callable[[Array], Array], params: Params) -> Params:
    """Parameters whose numbers, in a row, are what a function makes of them."""
    row, restore = ravel_pytree(params)
    return restore(function(row))


UNIT_CUBE = BoundTransform(0.0, 1.0)  # of points of a space of hyperparameters
