"""Uniform replay: a ring buffer of the newest rows, sampled uniformly."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, PyTree, Shaped, UInt

from evorl import mesh, tree
from evorl.replay.row_layout import RowLayout
from evorl.types import Sample


@struct.dataclass
class RingBuffer:
    """Ring buffer of the newest `capacity` rows of any pytree.

    Rows are stored in one table per dtype, so that adding is one scatter and sampling one gather per table.
    """

    tables: dict[str, Shaped[Array, "capacity width"]]  # by dtype
    position: Int[Array, ""]  # index of the next row, modulo capacity, so that it cannot overflow
    size: Int[Array, ""]
    row: RowLayout = struct.field(pytree_node=False)
    can_drop: bool = struct.field(pytree_node=False, default=False)  # if true, the oldest row may not be at index 0
    # inside a function that is sharded over environments, the number of devices that hold a part of the tables each
    num_shards: int = struct.field(pytree_node=False, default=1)

    @classmethod
    def empty(cls, capacity: int, row: PyTree) -> "RingBuffer":
        """Return an empty buffer for rows like `row`, a pytree of arrays or of their shapes (jax.eval_shape)."""
        layout = RowLayout.from_row(row)
        tables = {dtype: jnp.zeros((capacity, width), dtype) for dtype, width in layout.widths.items()}
        return cls(tables, jnp.int32(0), jnp.int32(0), layout)

    @property
    def capacity(self) -> int:
        """Return the maximum number of rows."""
        return tree.leading_size(self.tables) * self.num_shards

    @jax.named_scope("replay")
    def add(self, rows: PyTree, mask: Bool[Array, "..."]) -> "RingBuffer":
        """Append the rows, leaves [*mask.shape, ...], that are finite and valid by the mask.

        If they are more than the capacity, only the newest are kept.
        """
        return self.add_with_indices(rows, mask)[0]

    def add_with_indices(self, rows: PyTree, mask: Bool[Array, "..."]) -> tuple["RingBuffer", Int[Array, " n"]]:
        """Return the buffer after `add`, and the index of each row.

        The index of a row that was not kept is at least the capacity.
        """
        packed = self.row.pack(jax.tree.map(lambda x: x.reshape(mask.size, *x.shape[mask.ndim :]), rows))
        mask = mask.reshape(-1) & tree.find_finite_rows(packed)  # so that a diverged run does not corrupt the buffer
        rank = jnp.cumsum(mask) - 1
        count = mask.sum()
        kept = mask & (rank >= count - self.capacity)
        out_of_bounds = self.capacity + jnp.arange(mask.size)  # distinct, as unique indices are required
        target = jnp.where(kept, (self.position + rank) % self.capacity, out_of_bounds)
        own = self._find_own_rows(target)
        tables = {
            dtype: table.at[own].set(packed[dtype], mode="drop", unique_indices=True)
            for dtype, table in self.tables.items()
        }
        position = ((self.position + count) % self.capacity).astype(jnp.int32)
        size = jnp.minimum(self.size + count, self.capacity).astype(jnp.int32)
        return replace(self, tables=tables, position=position, size=size), target

    def _find_own_rows(self, target: Int[Array, " n"]) -> Int[Array, " n"]:
        """Return the indices in this device's part of the tables; those of other parts are out of bounds."""
        if self.num_shards == 1:
            return target
        n = tree.leading_size(self.tables)
        own = target - jax.lax.axis_index(mesh.ENVS) * n
        return jnp.where((own >= 0) & (own < n), own, n + jnp.arange(len(target)))

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        """Sample rows uniformly with replacement, leaves [*shape, ...]; the buffer must not be empty.

        The relative error of the uniform probability is at most size / 2^32.
        """
        drawn = jax.random.bits(key, shape) % jnp.maximum(self.size, 1).astype(jnp.uint32)
        if self.can_drop:
            first = jnp.where(self.size < self.capacity, self.oldest_index, 0).astype(jnp.uint32)
            drawn = (first + drawn) % jnp.uint32(self.capacity)
        return Sample(self.gather_rows(drawn), drawn.astype(jnp.int32))

    @property
    def oldest_index(self) -> Int[Array, ""]:
        """Return the index of the oldest row, which is 0 until rows are overwritten or dropped."""
        return (self.position - self.size) % self.capacity

    def drop_oldest(self, count: Int[Array, ""]) -> "RingBuffer":
        """Return the buffer without its `count` oldest rows."""
        return replace(self, size=(self.size - count).astype(jnp.int32), can_drop=True)

    def gather_rows(self, index: Int[Array, "..."] | UInt[Array, "..."]) -> PyTree:
        """Return the rows at the given indices, leaves [*index.shape, ...]."""
        return self.row.unpack(tree.index(self.tables, index))


@dataclass(frozen=True)
class UniformReplay:
    """Uniform replay: a ring buffer of the newest rows, sampled uniformly."""

    @property
    def has_sequences(self) -> bool:
        return False

    def empty(self, capacity: int, row: PyTree, num_envs: int = 1) -> RingBuffer:
        del num_envs
        return RingBuffer.empty(capacity, row)


UNIFORM = UniformReplay()
