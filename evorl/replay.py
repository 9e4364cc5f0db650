"""Replays on the device; so far a ring of the newest rows."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, PyTree

from evorl import tree
from evorl.types import Replay, Sample


@dataclass(frozen=True)
class Row:
    """How a pytree lies in tables: per leaf its dtype and shape, side by side in the order of the leaves."""

    treedef: Any
    leaves: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, row: PyTree) -> "Row":
        """The layout of rows like this one."""
        leaves, treedef = jax.tree.flatten(row)
        return cls(treedef, tuple((str(leaf.dtype), tuple(leaf.shape)) for leaf in leaves))

    @property
    def widths(self) -> dict[str, int]:
        """Columns of each table."""
        widths: dict[str, int] = {}
        for dtype, shape in self.leaves:
            widths[dtype] = widths.get(dtype, 0) + math.prod(shape)
        return widths

    def pack(self, rows: PyTree) -> dict[str, Array]:
        """Rows, leaves [n, ...], as tables [n, width]."""
        columns: dict[str, list[Array]] = {}
        for leaf, (dtype, _) in zip(self.treedef.flatten_up_to(rows), self.leaves, strict=True):
            columns.setdefault(dtype, []).append(jnp.asarray(leaf, dtype).reshape(leaf.shape[0], -1))
        return {dtype: jnp.concatenate(parts, axis=1) for dtype, parts in columns.items()}

    def unpack(self, tables: dict[str, Array]) -> PyTree:
        """Tables [..., width] as rows, leaves [..., *shape]."""
        start = dict.fromkeys(tables, 0)
        leaves = []
        for dtype, shape in self.leaves:
            table, width = tables[dtype], math.prod(shape)
            part = jax.lax.slice_in_dim(table, start[dtype], start[dtype] + width, axis=-1)
            leaves.append(part.reshape(*table.shape[:-1], *shape))
            start[dtype] += width
        return self.treedef.unflatten(leaves)


@struct.dataclass
class Ring:
    """The newest `capacity` rows of any pytree, as one table per dtype: one scatter to add, one gather to sample."""

    tables: Any  # dtype -> [capacity, width]
    position: Any  # [] int32, where the next row goes; never above capacity, so it cannot overflow
    size: Any  # [] int32
    row: Row = struct.field(pytree_node=False)

    @classmethod
    def empty(cls, capacity: int, row: PyTree) -> "Ring":
        """A replay for rows like `row`, a pytree of arrays or of their shapes (jax.eval_shape)."""
        layout = Row.of(row)
        tables = {dtype: jnp.zeros((capacity, width), dtype) for dtype, width in layout.widths.items()}
        return cls(tables, jnp.int32(0), jnp.int32(0), layout)

    @property
    def capacity(self) -> int:
        """How many rows there is room for."""
        return tree.size(self.tables)

    @jax.named_scope("replay")
    def add(self, rows: PyTree, mask: Bool[Array, " n"]) -> "Ring":
        """Appends the rows, leaves [n, ...], where mask and all finite; of more than fit, the newest stay."""
        packed = self.row.pack(rows)
        mask &= tree.finite_rows(packed)  # so that a copy that has diverged spoils no replay
        rank = jnp.cumsum(mask) - 1
        count = mask.sum()
        kept = mask & (rank >= count - self.capacity)
        out_of_bounds = self.capacity + jnp.arange(mask.size)  # distinct, so that the indices stay unique
        target = jnp.where(kept, (self.position + rank) % self.capacity, out_of_bounds)
        tables = {
            dtype: table.at[target].set(packed[dtype], mode="drop", unique_indices=True)
            for dtype, table in self.tables.items()
        }
        position = ((self.position + count) % self.capacity).astype(jnp.int32)
        size = jnp.minimum(self.size + count, self.capacity).astype(jnp.int32)
        return Ring(tables, position, size, self.row)

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        """Drawn uniformly with replacement, leaves [*shape, ...], to 1 part in 2^32 / size; it must hold some."""
        drawn = jax.random.bits(key, shape) % jnp.maximum(self.size, 1).astype(jnp.uint32)
        return Sample(self.row.unpack(tree.index(self.tables, drawn)), drawn.astype(jnp.int32))


@dataclass(frozen=True)
class Uniform:
    """A ring, of which all rows are drawn alike."""

    def empty(self, capacity: int, row: PyTree) -> Ring:
        return Ring.empty(capacity, row)


UNIFORM = Uniform()


def split(state: PyTree) -> tuple[PyTree, list[Replay]]:
    """The state with its replays hollowed out, without a leaf, and these in order."""
    leaves, treedef = jax.tree.flatten(state, is_leaf=_is_replay)
    hollow = [jax.tree.map(lambda _: (), x) if _is_replay(x) else x for x in leaves]
    return treedef.unflatten(hollow), [x for x in leaves if _is_replay(x)]


def join(state: PyTree, replays: list[Replay]) -> PyTree:
    """The state with replays in the places that split took them from."""
    given = iter(replays)
    return jax.tree.map(lambda x: next(given) if _is_replay(x) else x, state, is_leaf=_is_replay)


def _is_replay(x: Any) -> bool:
    return isinstance(x, Replay)
