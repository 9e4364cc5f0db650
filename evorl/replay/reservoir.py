"""Reservoir replay: a uniform sample of all rows that were ever added."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int, PyTree, Shaped, UInt32

from evorl import tree
from evorl.replay.row_layout import RowLayout
from evorl.types import Key, Sample

MAX_COUNT = np.iinfo(np.uint32).max  # largest number of rows that is counted


@struct.dataclass
class ReservoirBuffer:
    """Reservoir of rows of any pytree: each of t added rows is kept with probability capacity / t.

    Rows are counted up to 2^32 - 1, about 4e9. Beyond that, each new row is treated as the last one of this
    number.

    Source: Vitter 1985, algorithm R.
    """

    tables: dict[str, Shaped[Array, "capacity width"]]  # by dtype
    num_added: UInt32[Array, ""]  # number of rows so far
    size: Int[Array, ""]
    bits: UInt32[Array, " words"]  # key data of the random key
    row: RowLayout = struct.field(pytree_node=False)

    @classmethod
    def empty(cls, capacity: int, row: PyTree, key: Key) -> "ReservoirBuffer":
        """Return an empty buffer for rows like `row`, a pytree of arrays or of their shapes (jax.eval_shape)."""
        layout = RowLayout.from_row(row)
        tables = {dtype: jnp.zeros((capacity, width), dtype) for dtype, width in layout.widths.items()}
        return cls(tables, jnp.uint32(0), jnp.int32(0), jax.random.key_data(key), layout)

    @property
    def capacity(self) -> int:
        """Return the maximum number of rows."""
        return tree.leading_size(self.tables)

    @jax.named_scope("replay")
    def add(self, rows: PyTree, mask: Bool[Array, "..."]) -> "ReservoirBuffer":
        """Offer rows to the reservoir in order: those that are finite and valid by the mask.

        The leaves of rows are [*mask.shape, ...].
        """
        packed = self.row.pack(jax.tree.map(lambda x: x.reshape(mask.size, *x.shape[mask.ndim :]), rows))
        mask = mask.reshape(-1) & tree.find_finite_rows(packed)
        key = jax.random.fold_in(jax.random.wrap_key_data(self.bits), self.num_added)
        before = jnp.minimum(self.num_added, jnp.uint32(MAX_COUNT - mask.size))
        number = before + jnp.cumsum(mask, dtype=jnp.uint32)  # serial number of each added row, from 1
        drawn = jax.random.randint(key, mask.shape, 0, jnp.maximum(number, 1), jnp.uint32)
        place = jnp.where(number <= self.capacity, number - 1, drawn)
        target = self._drop_overwritten(
            jnp.where(mask & (place < self.capacity), place, self.capacity).astype(jnp.int32)
        )
        tables = {
            dtype: table.at[target].set(packed[dtype], mode="drop", unique_indices=True)
            for dtype, table in self.tables.items()
        }
        added = before + mask.sum(dtype=jnp.uint32)
        size = jnp.minimum(added, self.capacity).astype(jnp.int32)
        return ReservoirBuffer(tables, added, size, self.bits, self.row)

    def _drop_overwritten(self, place: Int[Array, " n"]) -> Int[Array, " n"]:
        """Return the indices with distinct out-of-bounds ones in place of those that occur again later.

        Indices that are out of bounds already are made distinct, too.
        """
        order = jnp.argsort(place, stable=True)
        ordered = place[order]
        again = jnp.append(ordered[1:] == ordered[:-1], False)
        again = jnp.zeros(len(place), bool).at[order].set(again, unique_indices=True)
        return jnp.where(again | (place >= self.capacity), self.capacity + jnp.arange(len(place)), place)

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        """Sample rows uniformly with replacement, leaves [*shape, ...]; the buffer must not be empty."""
        drawn = jax.random.randint(key, shape, 0, jnp.maximum(self.size, 1))
        return Sample(self.row.unpack(tree.index(self.tables, drawn)), drawn)


@dataclass(frozen=True)
class ReservoirReplay:
    """Reservoir replay: keeps a uniform sample of all rows that were ever added, and samples from it uniformly.

    The random key of the reservoir is fixed, so that runs that add equal rows keep the same ones.
    """

    @property
    def has_sequences(self) -> bool:
        return False

    def empty(self, capacity: int, row: PyTree, num_envs: int = 1) -> ReservoirBuffer:
        del num_envs
        return ReservoirBuffer.empty(capacity, row, jax.random.key(0))
