"""Host calls that serve all vmapped rows at once, at any depth of vmap."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from evorl import tree

LeafShapes = Sequence[jax.ShapeDtypeStruct]
# JAX copies an argument of 100 kB or more on another thread, which may be the one that waits for the call: a deadlock
CHUNK_BYTES = 64 * 1024


def batch_host_calls(
    host: Callable[..., Sequence[np.ndarray]], answer: LeafShapes, failed: Callable[[BaseException], None]
) -> Callable[..., Any]:
    """Turn a host function of many rows into a JAX function of one row, which makes one call for all vmapped rows.

    Calls are ordered only by data dependence. The arrays travel as the bytes of one array, because each array
    costs as much as a call.

    Args:
        host: Function of arrays [n, ...] that returns arrays [n, ...].
        answer: Shapes and dtypes of one row of what host returns.
        failed: Function that receives an exception of host. The answer is then zeros, because an exception
            would lose the state of the running program.

    Returns:
        A function of the arrays of one row that returns arrays of the shapes in `answer`.
    """

    def call_row(*row: Any) -> Any:
        given = [jnp.asarray(x) for x in row]
        asked, told = _record_dtype([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in given]), _record_dtype(answer)

        def run_on_host(pieces: Sequence[Any]) -> np.ndarray:
            arrays = [np.asarray(piece) for piece in pieces]
            rows = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            try:
                fields = rows.view(asked)[:, 0]
                return _pack_rows(host(*(fields[name] for name in asked.names or ())), told)
            except BaseException as error:
                failed(error)
                return np.zeros((len(rows), told.itemsize), np.uint8)

        found = _batch_bytes_call(run_on_host, told.itemsize)(_to_bytes(given))
        return _from_bytes(found, answer)

    return call_row


def _batch_bytes_call(host: Callable[[Sequence[Any]], np.ndarray], width: int) -> Callable[[Any], Any]:
    """Turn a host function of byte rows [n, ...], given in chunks, into a JAX function of one row of bytes.

    The host function returns bytes [n, width].
    """

    @jax.custom_batching.custom_vmap
    def call(rows: Any) -> Any:
        n = rows.shape[0]
        step = max(CHUNK_BYTES // rows.shape[1], 1)
        pieces = [rows[i : i + step] for i in range(0, n, step)]
        return io_callback(host, jax.ShapeDtypeStruct((n, width), jnp.uint8), pieces)

    @call.def_vmap
    def _(axis_size: int, in_batched: list[bool], rows: Any) -> tuple[Any, bool]:
        rows = rows if in_batched[0] else tree.broadcast(rows, axis_size)
        found = call(rows.reshape(-1, rows.shape[-1]))
        return found.reshape(axis_size, -1, width), True

    return lambda row: call(row[None])[0]


def _to_bytes(values: Sequence[Any]) -> Any:
    """Concatenate the bytes of arrays."""
    plain = [x.astype(jnp.uint8) if x.dtype == bool else x for x in values]
    return jnp.concatenate([jax.lax.bitcast_convert_type(x, jnp.uint8).reshape(-1) for x in plain])


def _from_bytes(row: Any, leaves: LeafShapes) -> list[Any]:
    found, at = [], 0
    for leaf in leaves:
        part = row[at : at + _nbytes(leaf)]
        if leaf.dtype == bool:
            found.append((part != 0).reshape(leaf.shape))
        else:
            size = leaf.dtype.itemsize
            words = part.reshape(*leaf.shape, *([size] if size > 1 else []))
            found.append(jax.lax.bitcast_convert_type(words, leaf.dtype))
        at += _nbytes(leaf)
    return found


def _record_dtype(leaves: LeafShapes) -> np.dtype:
    """Return a packed structured dtype with one field per leaf."""
    return np.dtype([(str(i), leaf.dtype, leaf.shape) for i, leaf in enumerate(leaves)])


def _pack_rows(arrays: Sequence[np.ndarray], record: np.dtype) -> np.ndarray:
    """Pack arrays, shape [n, ...], into bytes, shape [n, record size]."""
    rows = np.empty(len(arrays[0]), record)
    for name, array in zip(record.names or (), arrays, strict=True):
        rows[name] = array
    return rows.view(np.uint8).reshape(len(rows), record.itemsize)


def _nbytes(leaf: jax.ShapeDtypeStruct) -> int:
    return leaf.size * leaf.dtype.itemsize
