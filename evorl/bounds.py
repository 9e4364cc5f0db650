"""Box constraints for evolvers: a smooth map from an unbounded search space to a box."""

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

MARGIN = 0.05  # relative to the bound, as in pycma


class Edges(NamedTuple):
    """Bounds of a box and the half-widths of the transition regions at them, each [] or [size]."""

    low: np.ndarray
    high: np.ndarray
    low_margin: np.ndarray  # half-width of the transition region at low
    high_margin: np.ndarray  # and at high


def reflect(x: Array, low: Any, high: Any) -> Array:
    """Reflect values at the ends of [low, high] as often as needed; nothing is reflected at an infinite end."""
    up, down = jnp.abs(x - low), jnp.abs(high - x)  # distances from the ends
    width = jnp.where(jnp.isfinite(high - low) & (high > low), high - low, 1.0)
    both = low + jnp.abs(jnp.mod(x - low + width, 2 * width) - width)
    one = jnp.where(jnp.isfinite(low), low + up, jnp.where(jnp.isfinite(high), high - down, x))
    reflected = jnp.where(jnp.isfinite(low) & jnp.isfinite(high), both, one)
    return jnp.where((x >= low) & (x <= high), x, jnp.clip(reflected, low, high))


@dataclass(frozen=True)
class BoundTransform:
    """Map from an unbounded search space to parameters within bounds.

    If an evolver receives the fitness of clipped points, the function that it sees is flat outside of the
    bounds. If the optimum lies on a bound, the mean of the evolver then drifts away, and its step size grows
    without limit. `fold` instead maps the points of the evolver smoothly into the box, so that the evolver
    searches a function without bounds.

    `fold` is the identity except in a transition region at each bound, in which it is quadratic. Outside, it
    is periodic. It is the boundary transformation of Hansen's pycma (`BoundTransform`). The transition region
    extends equally far to either side of its bound: 5 % of |bound|, at least 0.05, and at most half of the
    box.

    Args:
        low: Lower bound, one value for all parameters, or one for each parameter in their flattened order,
            shape [size]; -inf for no bound.
        high: Upper bound, in the same form; inf for no bound.

    Raises:
        OptionError: If low is not below high.
    """

    low: Bound
    high: Bound

    def __post_init__(self) -> None:
        low, high = (np.asarray(bound, np.float32) for bound in (self.low, self.high))
        require(bool(np.all(low < high)), "bounds", f"{low.tolist()}, {high.tolist()}", "low must be below high")

    @property
    def is_bounded(self) -> bool:
        """Return whether any bound is finite."""
        return bool(np.isfinite(self.edges.low).any() or np.isfinite(self.edges.high).any())

    @cached_property
    def edges(self) -> Edges:
        """Return the bounds and the half-widths of the transition regions at them, in float32."""
        low, high = np.broadcast_arrays(*(np.asarray(bound, np.float64) for bound in (self.low, self.high)))

        def margin(bound: np.ndarray) -> np.ndarray:
            width = np.minimum((high - low) / 2, MARGIN * np.maximum(np.abs(bound), 1))
            return np.where(np.isfinite(bound), np.maximum(width, 1e-30), 1)

        return Edges(*(x.astype(np.float32) for x in (low, high, margin(low), margin(high))))

    def clip(self, params: Params) -> Params:
        """Return the parameters, with each value clipped to the bounds."""
        return _map_raveled(lambda x: jnp.clip(x, self.edges.low, self.edges.high), params)

    def fold(self, params: Params) -> Params:
        """Map a point of the search space to parameters within the bounds."""
        return _map_raveled(self.fold_array, params)

    def unfold(self, params: Params) -> Params:
        """Return a point of the search space that `fold` maps to the given parameters within the bounds."""
        return _map_raveled(self.unfold_array, params)

    def fold_array(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Apply `fold` to an array whose last axis holds the flattened parameters."""
        low, high, below, above = self.edges
        x = reflect(x, low - below, high + above)
        y = jnp.where(x < low + below, low + (x - (low - below)) ** 2 / (4 * below), x)
        y = jnp.where(x > high - above, high - (high + above - x) ** 2 / (4 * above), y)
        return jnp.clip(y, low, high)

    def unfold_array(self, y: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Apply `unfold` to an array whose last axis holds the flattened parameters."""
        low, high, below, above = self.edges
        y = jnp.clip(y, low, high)
        x = jnp.where(y < low + below, low - below + 2 * jnp.sqrt(below * jnp.maximum(y - low, 0)), y)
        return jnp.where(y > high - above, high + above - 2 * jnp.sqrt(above * jnp.maximum(high - y, 0)), x)


def _map_raveled(function: Callable[[Array], Array], params: Params) -> Params:
    """Apply a function to the flattened parameters, and restore their structure."""
    row, restore = ravel_pytree(params)
    return restore(function(row))


UNIT_CUBE = BoundTransform(0.0, 1.0)  # bounds of the points of a hyperparameter search
