"""A replay of the newest rows, of which all are drawn alike."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, PyTree, Shaped, UInt

from evorl import tree
from evorl.replay.row_layout import RowLayout
from evorl.types import Sample


@struct.dataclass
class RingBuffer:
    """The newest `capacity` rows of any pytree, as one table per dtype: one scatter to add, one gather to sample."""

    tables: dict[str, Shaped[Array, "capacity width"]]  # by dtype
    position: Int[Array, ""]  # where the next row goes; never above capacity, so it cannot overflow
    size: Int[Array, ""]
    row: RowLayout = struct.field(pytree_node=False)
    can_drop: bool = struct.field(pytree_node=False, default=False)  # then the oldest need not lie in place 0

    @classmethod
    def empty(cls, capacity: int, row: PyTree) -> "RingBuffer":
        """A replay for rows like `row`, a pytree of arrays or of their shapes (jax.eval_shape)."""
        layout = RowLayout.from_row(row)
        tables = {dtype: jnp.zeros((capacity, width), dtype) for dtype, width in layout.widths.items()}
        return cls(tables, jnp.int32(0), jnp.int32(0), layout)

    @property
    def capacity(self) -> int:
        """How many rows there is room for."""
        return tree.leading_size(self.tables)

    @jax.named_scope("replay")
    def add(self, rows: PyTree, mask: Bool[Array, "..."]) -> "RingBuffer":
        """Appends rows, leaves [*shape of mask, ...], where mask and all finite; of more than fit, the newest stay."""
        return self.add_with_indices(rows, mask)[0]

    def add_with_indices(self, rows: PyTree, mask: Bool[Array, "..."]) -> tuple["RingBuffer", Int[Array, " n"]]:
        """The replay with the rows, and where it holds each of them now, from its capacity on where it does not."""
        packed = self.row.pack(jax.tree.map(lambda x: x.reshape(mask.size, *x.shape[mask.ndim :]), rows))
        mask = mask.reshape(-1) & tree.find_finite_rows(packed)  # so that a copy that has diverged spoils no replay
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
        return replace(self, tables=tables, position=position, size=size), target

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        """Drawn uniformly with replacement, leaves [*shape, ...], to 1 part in 2^32 / size; it must hold some."""
        drawn = jax.random.bits(key, shape) % jnp.maximum(self.size, 1).astype(jnp.uint32)
        if self.can_drop:
            first = jnp.where(self.size < self.capacity, self.oldest_index, 0).astype(jnp.uint32)
            drawn = (first + drawn) % jnp.uint32(self.capacity)
        return Sample(self.gather_rows(drawn), drawn.astype(jnp.int32))

    @property
    def oldest_index(self) -> Int[Array, ""]:
        """Where the oldest row lies, which is in place 0 until rows are overwritten or forgotten."""
        return (self.position - self.size) % self.capacity

    def drop_oldest(self, count: Int[Array, ""]) -> "RingBuffer":
        """The ring without its `count` oldest rows."""
        return replace(self, size=(self.size - count).astype(jnp.int32), can_drop=True)

    def gather_rows(self, index: Int[Array, "..."] | UInt[Array, "..."]) -> PyTree:
        """Those at places, leaves [*shape of index, ...]."""
        return self.row.unpack(tree.index(self.tables, index))


@dataclass(frozen=True)
class UniformReplay:
    """A ring, of which all rows are drawn alike."""

    @property
    def has_sequences(self) -> bool:
        return False

    def empty(self, capacity: int, row: PyTree, num_envs: int = 1) -> RingBuffer:
        del num_envs
        return RingBuffer.empty(capacity, row)


UNIFORM = UniformReplay()
