"""Computations whose cost follows the number of policies in a pool instead of its capacity."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from evorl import tree

SMALLEST, GROWTH = 16, 4  # sizes for which a computation is compiled: 16, 64, 256, ..., the capacity
T = TypeVar("T")


def compute_on_prefix(mask: Bool[Array, "*players capacity"], compute: Callable[[int], T]) -> T:
    """Return compute(size) for a size of which the first `size` policies include all policies of a mask.

    The size is the smallest one of a few, for each of which the computation is compiled. The shape of its
    result may not depend on the size. Vmapped copies share the size that suffices for all of them.
    """
    sizes = _list_sizes(mask.shape[-1])
    used = tree.max_unbatched(jnp.where(mask, jnp.arange(1, mask.shape[-1] + 1), 0))
    chosen = jnp.searchsorted(jnp.array(sizes), used)
    if len(sizes) == 1 or not isinstance(chosen, Tracer):
        return compute(sizes[0] if len(sizes) == 1 else sizes[int(chosen)])
    return jax.lax.switch(chosen, [partial(compute, size) for size in sizes])


def take_policies(tables: T, size: int, players: int) -> T:
    """Return the cells of the first `size` policies of tables, leaves [players, capacity, ..., capacity]."""
    return tree.index(tables, (slice(None), *[slice(size)] * players))


def pad_policies(table: Float[Array, "players ..."], capacity: int) -> Float[Array, "players ..."]:
    """Return a table with zeros for the policies up to the capacity, on all of its axes but those of size 1."""
    return jnp.pad(table, [(0, 0), *((0, capacity - n if n > 1 else 0) for n in table.shape[1:])])


def _list_sizes(capacity: int) -> list[int]:
    sizes = []
    while SMALLEST * GROWTH ** len(sizes) < capacity:
        sizes.append(SMALLEST * GROWTH ** len(sizes))
    return [*sizes, capacity]
