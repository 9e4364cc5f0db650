"""How a pytree lies in tables."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree


@dataclass(frozen=True)
class RowLayout:
    """How a pytree lies in tables: per leaf its dtype and shape, side by side in the order of the leaves."""

    treedef: Any  # a jax.tree_util.PyTreeDef, which JAX does not declare as a class to type checkers
    leaves: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def from_row(cls, row: PyTree) -> "RowLayout":
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
