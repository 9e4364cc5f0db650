"""One call of the host for all rows that are vmapped, however deep."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from evorl import tree

PIECE = 64 * 1024  # bytes of an argument. From 100 kB on JAX copies one on a thread that may be the one that waits


def merged(host: Callable[..., Sequence[np.ndarray]], answer: Sequence[jax.ShapeDtypeStruct]) -> Callable[..., Any]:
    """host(*rows), arrays [n, ...] -> arrays of the shapes `answer` led by [n], as a function of one row.

    It is called in the order of the data that passes through it: what does not depend on each other has no order.
    """

    @jax.custom_batching.custom_vmap
    def call(*rows: Any) -> Any:
        n = rows[0].shape[0]
        shapes = [jax.ShapeDtypeStruct((n, *one.shape), one.dtype) for one in answer]
        return io_callback(lambda pieces: host(*map(_joined, pieces)), shapes, [_pieces(x) for x in rows])

    @call.def_vmap
    def _(axis_size: int, in_batched: list[bool], *rows: Any) -> tuple[Any, Any]:
        each = [x if batched else tree.broadcast(x, axis_size) for x, batched in zip(rows, in_batched, strict=True)]
        found = call(*(x.reshape(-1, *x.shape[2:]) for x in each))
        return [x.reshape(axis_size, -1, *x.shape[1:]) for x in found], [True] * len(answer)

    def one(*row: Any) -> Any:
        return [x[0] for x in call(*(jnp.asarray(x)[None] for x in row))]

    return one


def _pieces(x: Any) -> list[Any]:
    """An array in pieces along its rows, each small enough."""
    rows = max(PIECE * x.shape[0] // max(x.nbytes, 1), 1)
    return [x[i : i + rows] for i in range(0, x.shape[0], rows)]


def _joined(pieces: Sequence[Any]) -> np.ndarray:
    arrays = [np.asarray(piece) for piece in pieces]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
