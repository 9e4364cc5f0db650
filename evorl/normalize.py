"""Running mean and variance of observations."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, PyTree

from evorl import tree
from evorl.types import Transition

MAX_UPDATES = 2**20  # from then on, old observations lose weight: in float32, larger sums stop at a wrong value


@struct.dataclass
class RunningStatistics:
    """Count, mean and sum of squared deviations of a stream of pytrees (Welford 1962; Chan et al. 1979 for merging).

    They weigh all observations equally until there are 2^20 times as many as rows in one update. From then on,
    they are those of about this many of the last observations.
    """

    count: PyTree  # of each leaf, float []
    mean: PyTree
    sum_of_squares: PyTree

    @classmethod
    def empty(cls, like: PyTree) -> "RunningStatistics":
        """Return the statistics of no observations; `like` is one observation or its shapes."""
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), like)
        return cls(jax.tree.map(lambda x: jnp.float32(0), like), zeros, zeros)

    def update(self, batch: PyTree, mask: PyTree = True) -> "RunningStatistics":
        """Add a batch.

        Args:
            batch: Observations, leaves [*rows, ...].
            mask: Rows that count, bool [*rows] or its first axes: of all leaves, or a prefix of the pytree.
        """

        def update_leaf(mask: Any, x: Array, *old: Array) -> tuple[Array, ...]:
            rows = x.shape[: x.ndim - old[1].ndim]
            mask = jnp.asarray(mask)
            there = jnp.broadcast_to(mask.reshape(mask.shape + (1,) * (len(rows) - mask.ndim)), rows).reshape(-1)
            x = x.reshape(len(there), *old[1].shape)
            weight = there.astype(jnp.float32).reshape(-1, *(1,) * (x.ndim - 1))
            x = jnp.where(weight > 0, x, 0)  # masked rows may be NaN
            count = weight.sum()
            mean = (weight * x).sum(0) / jnp.maximum(count, 1)
            new = count, mean, (weight * (x - mean) ** 2).sum(0)
            return _merge(old, new, float(MAX_UPDATES * len(there)))

        def update_all(mask: Any, *trees: PyTree) -> Any:
            return jax.tree.map(lambda *leaves: update_leaf(mask, *leaves), *trees)

        return self._from_leaves(jax.tree.map(update_all, mask, batch, self.count, self.mean, self.sum_of_squares))

    def merge(self, other: "RunningStatistics") -> "RunningStatistics":
        """Return the statistics of both streams together."""
        mine, others = ((x.count, x.mean, x.sum_of_squares) for x in (self, other))
        return self._from_leaves(jax.tree.map(lambda *x: _merge(x[:3], x[3:]), *mine, *others))

    def _from_leaves(self, leaves: PyTree) -> "RunningStatistics":
        """Return the statistics from a pytree of tuples (count, mean, sum of squares)."""
        return RunningStatistics(
            *jax.tree.transpose(jax.tree.structure(self.mean), jax.tree.structure((0, 0, 0)), leaves)
        )

    def normalize(self, obs: PyTree, clip: float = 10.0) -> PyTree:
        """Return (obs - mean) / std, clipped to [-clip, clip], leaves [..., *].

        Before the first observation, mean and std are 0 and 1. Integer leaves (discrete observations or
        pixels) and boolean leaves stay unchanged.
        """

        def normalize_leaf(x: Array, count: Array, mean: Array, squares: Array) -> Array:
            if not jnp.issubdtype(x.dtype, jnp.floating):
                return x
            variance = jnp.where(count > 0, squares / jnp.maximum(count, 1), 1.0)
            return jnp.clip((x - mean) * jax.lax.rsqrt(variance + 1e-8), -clip, clip)

        return jax.tree.map(normalize_leaf, obs, self.count, self.mean, self.sum_of_squares)


def _merge(a: tuple[Array, ...], b: tuple[Array, ...], max_count: float = math.inf) -> tuple[Array, ...]:
    """Merge the count, mean and sum of squares of two streams; those of a lose weight above a count of `max_count`."""
    (count_a, mean_a, squares_a), (count_b, mean_b, squares_b) = a, b
    count = jnp.minimum(count_a + count_b, max_count)
    lost = jnp.maximum(count_a + count_b - max_count, 0) / jnp.maximum(count_a, 1)
    share, moved = count_b / jnp.maximum(count, 1), mean_b - mean_a
    squares = squares_a + (squares_b + moved**2 * count_a * (1 - lost) * share - squares_a * lost)
    return count, mean_a + moved * share, squares


def get_member_shapes(row: Transition, x: PyTree) -> PyTree:
    """Return the shapes of a part of a row; in a game, of one member of each group, whose members share statistics.

    Args:
        row: Transition, without a batch axis.
        x: Part of the row, such as its observation. In a game, entries that belong to no group stay whole.
    """
    shapes = lambda x, axes: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[axes:], leaf.dtype), x)  # noqa: E731
    if not isinstance(row.reward, Mapping):
        return shapes(x, 0)
    return {name: shapes(part, 1 if name in row.reward else 0) for name, part in x.items()}


def update_obs_statistics(statistics: Any, transitions: Transition, mask: Array) -> Any:
    """Return statistics, or None without any, with the finite observations of masked transitions [steps, n, ...]."""
    if statistics is None:
        return None
    finite = tree.find_finite_rows(tree.merge_axes(transitions.obs)).reshape(mask.shape)
    return statistics.update(transitions.obs, mask_members(transitions, transitions.obs, mask & finite))


def mask_members(transitions: Transition, x: PyTree, mask: Any = True) -> Any:
    """Return which rows count in statistics, without members that had ended before the step.

    Args:
        transitions: Transitions, leaves [*batch, ...].
        x: Part of the transitions whose statistics are updated, such as their observations.
        mask: Rows that count, bool [*batch], or True for all.

    Returns:
        The mask, or if members may end before the episode, one for each entry of `x`: bool [*batch, n] for a group.
    """
    gone = transitions.members_done
    if gone is None:
        return mask
    return {name: jnp.asarray(mask)[..., None] & ~gone[name] if name in gone else mask for name in x}
