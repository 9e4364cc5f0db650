"""Distribution of replay buffers over devices: each device holds a part of the rows of a ring buffer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import jax
from jax.sharding import PartitionSpec

from evorl import mesh
from evorl.replay.prioritized import PrioritizedRingBuffer
from evorl.replay.ring import RingBuffer
from evorl.types import ReplayBuffer

T = TypeVar("T")


def divide_rows(tree: T, shards: int) -> T:
    """Return a pytree whose ring buffers are marked as divided into `shards` parts, if these are equal."""

    def mark_ring(ring: RingBuffer) -> RingBuffer:
        return ring if _count_rows(ring) % shards else replace(ring, num_shards=shards)

    return _map_rings(mark_ring, lambda x: x, tree)


def join_rows(tree: T) -> T:
    """Return a pytree whose ring buffers are marked as whole."""
    return _map_rings(lambda ring: replace(ring, num_shards=1), lambda x: x, tree)


def find_row_specs(tree: Any) -> Any:
    """Return the distribution of each leaf of a pytree: that of the rows of divided ring buffers, nothing elsewhere.

    The rows may have leading axes, such as those of seeds and members.
    """

    def specify_tables(ring: RingBuffer) -> RingBuffer:
        none = jax.tree.map(lambda _: PartitionSpec(), ring)
        if ring.num_shards == 1:
            return none
        leading = [None] * (jax.tree.leaves(ring.tables)[0].ndim - 2)
        return replace(none, tables=dict.fromkeys(ring.tables, PartitionSpec(*leading, mesh.ENVS)))

    return _map_rings(specify_tables, lambda x: jax.tree.map(lambda _: PartitionSpec(), x), tree)


def _count_rows(ring: RingBuffer) -> int:
    return jax.tree.leaves(ring.tables)[0].shape[-2]


def _map_rings(f: Callable[[RingBuffer], Any], rest: Callable[[Any], Any], tree: Any) -> Any:
    """Map the ring buffers of a pytree that are not part of another buffer with f, and everything else with `rest`.

    Buffers of frames and sequences read their rows while they add others, so they stay whole.
    """

    def is_whole(x: Any) -> bool:
        return isinstance(x, ReplayBuffer) and not isinstance(x, PrioritizedRingBuffer)

    return jax.tree.map(lambda x: (f if isinstance(x, RingBuffer) else rest)(x), tree, is_leaf=is_whole)
