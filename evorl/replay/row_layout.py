"""Layout of the rows of a pytree in one table per dtype."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree


@dataclass(frozen=True)
class RowLayout:
    """Layout of the rows of a pytree in one table per dtype.

    It holds the dtype and shape of each leaf. In a table, leaves are concatenated in their order in the
    pytree.
    """

    treedef: Any  # a jax.tree_util.PyTreeDef, which type checkers do not see as a class
    leaves: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def from_row(cls, row: PyTree) -> "RowLayout":
        """Return the layout of rows like this one."""
        leaves, treedef = jax.tree.flatten(row)
        return cls(treedef, tuple((str(leaf.dtype), tuple(leaf.shape)) for leaf in leaves))

    @property
    def widths(self) -> dict[str, int]:
        """Return the number of columns of each table."""
        widths: dict[str, int] = {}
        for dtype, shape in self.leaves:
            widths[dtype] = widths.get(dtype, 0) + math.prod(shape)
        return widths

    def pack(self, rows: PyTree) -> dict[str, Array]:
        """Convert rows, leaves [n, ...], to tables [n, width]."""
        columns: dict[str, list[Array]] = {}
        for leaf, (dtype, _) in zip(self.treedef.flatten_up_to(rows), self.leaves, strict=True):
            columns.setdefault(dtype, []).append(jnp.asarray(leaf, dtype).reshape(leaf.shape[0], -1))
        return {dtype: jnp.concatenate(parts, axis=1) for dtype, parts in columns.items()}

    def unpack(self, tables: dict[str, Array]) -> PyTree:
        """Convert tables [..., width] to rows, leaves [..., *shape]."""
        start = dict.fromkeys(tables, 0)
        leaves = []
        for dtype, shape in self.leaves:
            table, width = tables[dtype], math.prod(shape)
            part = jax.lax.slice_in_dim(table, start[dtype], start[dtype] + width, axis=-1)
            leaves.append(part.reshape(*table.shape[:-1], *shape))
            start[dtype] += width
        return self.treedef.unflatten(leaves)
