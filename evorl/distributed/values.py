"""Values of tasks, which are stored and sent: pytrees as lists of NumPy arrays."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.distributed.task import Value
from evorl.envs.host import pool_registry
from evorl.errors import HostError


def pack_value(tree: Any) -> Value:
    """Return the leaves of a pytree as NumPy arrays; a random key is replaced by its data."""
    plain = jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)
    return [np.asarray(leaf) for leaf in jax.device_get(jax.tree.leaves(plain))]


def unpack_value(shapes: Any, value: Value) -> Any:
    """Return the pytree from which a value was packed; raise ValueError if it does not have the given shapes."""
    leaves, structure = jax.tree.flatten(shapes)
    return jax.tree.unflatten(structure, [_unpack_leaf(*both) for both in zip(leaves, value, strict=True)])


def is_compatible(shapes: Any, value: Value) -> bool:
    """Return whether a value was packed from a pytree with the given shapes."""
    try:
        unpack_value(shapes, value)
    except (TypeError, ValueError):
        return False
    return True


@contextmanager
def release_host_envs() -> Iterator[None]:
    """Release the environments on the host that a task has used, so that the next task takes over their processes.

    Raises:
        HostError: An environment has failed.
    """
    try:
        yield
    finally:
        pool_registry.release_unused((), pool_registry.newest_lease())
    if (fault := pool_registry.find_fault()) is not None:
        raise HostError(f"an environment has failed: {fault}")


def _unpack_leaf(shape: jax.ShapeDtypeStruct, array: np.ndarray) -> jax.Array:
    if _is_key(shape):
        return jax.random.wrap_key_data(jnp.asarray(array))
    if array.dtype.kind == "V":  # NumPy reads a type that it does not know, such as bfloat16, as bytes
        array = array.view(shape.dtype)
    if (array.shape, array.dtype) != (shape.shape, shape.dtype):
        raise ValueError(f"is {array.dtype}{list(array.shape)}, not {shape.dtype}{list(shape.shape)}")
    return jnp.asarray(array)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
