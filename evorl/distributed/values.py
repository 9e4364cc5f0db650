"""Trees of arrays as lists of NumPy's, which are written and sent, and back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.distributed.task import Value


def pack_value(tree: Any) -> Value:
    """The leaves of a tree, of keys their data."""
    plain = jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)
    return [np.asarray(leaf) for leaf in jax.device_get(jax.tree.leaves(plain))]


def unpack_value(shapes: Any, value: Value) -> Any:
    """The tree like shapes that was packed; raises ValueError where it was another one."""
    leaves, structure = jax.tree.flatten(shapes)
    return jax.tree.unflatten(structure, [_unpack_leaf(*both) for both in zip(leaves, value, strict=True)])


def is_compatible(shapes: Any, value: Value) -> bool:
    """Whether a value is of a tree like shapes."""
    try:
        unpack_value(shapes, value)
    except (TypeError, ValueError):
        return False
    return True


def _unpack_leaf(shape: jax.ShapeDtypeStruct, array: np.ndarray) -> jax.Array:
    if _is_key(shape):
        return jax.random.wrap_key_data(jnp.asarray(array))
    if array.dtype.kind == "V":  # a type that NumPy does not know, such as bfloat16, is read as bytes
        array = array.view(shape.dtype)
    if (array.shape, array.dtype) != (shape.shape, shape.dtype):
        raise ValueError(f"is {array.dtype}{list(array.shape)}, not {shape.dtype}{list(shape.shape)}")
    return jnp.asarray(array)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
