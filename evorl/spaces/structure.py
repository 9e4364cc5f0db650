"""Functions on nested spaces: their leaves, and conversion of values to and from arrays."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import TypeIs

from evorl.spaces.kinds import (
    Box,
    Dict,
    Discrete,
    Members,
    ObsWithActionMask,
    PrivilegedObs,
    Simple,
    Space,
    Tuple,
    subspaces,
    to_bound,
)

NARROW_DTYPES = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def groups(space: Space) -> dict[str, Members]:
    """Return the spaces of the groups of a multi-agent game by name; empty for any other space.

    Args:
        space: Observation or action space.
    """
    parts = subspaces(space) if isinstance(space, Dict) else []
    return {name: part for name, part in parts if isinstance(part, Members)}


def group_sizes(space: Space) -> dict[str, int]:
    """Return the number of agents of each group of a multi-agent game by name; empty for any other space.

    Args:
        space: Observation or action space.
    """
    return {name: of.n for name, of in groups(space).items()}


def is_simple(space: Space) -> TypeIs[Simple]:
    """Return whether a value of the space is a single array.

    Args:
        space: Space of any kind.
    """
    return isinstance(space, Simple)


def leaf_spaces(space: Space) -> list[Simple]:
    """Return the simple spaces that a space consists of, with the parts of a dictionary sorted by name.

    Args:
        space: Space of any kind.
    """
    if isinstance(space, Members):
        return leaf_spaces(space.joint_space)
    if is_simple(space):
        return [space]
    return [leaf for _, part in subspaces(space) for leaf in leaf_spaces(part)]


def flatten(space: Space, value: Any) -> list[Any]:
    """Return the arrays that a value consists of, in the order of `leaf_spaces`.

    Args:
        space: Space of the value.
        value: Value of the space.
    """
    if isinstance(space, Members):
        return flatten(space.joint_space, value)
    if is_simple(space):
        return [value]
    return [part for name, of in subspaces(space) for part in flatten(of, value[name])]


def unflatten(space: Space, parts: Iterable[Any]) -> Any:
    """Return the value of a space that consists of the given arrays.

    Args:
        space: Space of the value.
        parts: Arrays in the order of `leaf_spaces`.
    """
    if isinstance(space, Members):
        return unflatten(space.joint_space, parts)
    parts = iter(parts)
    if is_simple(space):
        return next(parts)
    values = {name: unflatten(of, parts) for name, of in subspaces(space)}
    return tuple(values.values()) if isinstance(space, Tuple) else values


def map_leaves(space: Space, change: Callable[[Simple], Simple]) -> Space:
    """Return the space with a function applied to each of its simple spaces.

    Args:
        space: Space of any kind.
        change: Function from a simple space to a simple space.
    """
    match space:
        case Dict():
            return Dict({name: map_leaves(part, change) for name, part in space.parts.items()})
        case Tuple():
            return Tuple(tuple(map_leaves(part, change) for part in space.parts))
        case ObsWithActionMask():
            return ObsWithActionMask(map_leaves(space.space, change), space.choices)
        case PrivilegedObs():
            return PrivilegedObs(map_leaves(space.space, change), map_leaves(space.state, change))
        case Members():
            return Members(map_leaves(space.space, change), space.n)
    return change(space)


def narrow_dtypes(space: Space) -> Space:
    """Return the space with 64-bit dtypes replaced by the 32-bit dtypes that JAX uses instead.

    Args:
        space: Space of any kind.
    """

    def narrow_leaf(leaf: Simple) -> Simple:
        if not isinstance(leaf, Box) or leaf.dtype not in NARROW_DTYPES:
            return leaf
        dtype = NARROW_DTYPES[leaf.dtype]
        low, high = leaf.bounds
        if np.issubdtype(dtype, np.integer):
            ends = np.iinfo(dtype)
            low, high = np.maximum(low, ends.min), np.minimum(high, ends.max)
        return Box(to_bound(low.astype(dtype)), to_bound(high.astype(dtype)), leaf.shape, dtype)

    return map_leaves(space, narrow_leaf)


def to_shape_structs(space: Space) -> Any:
    """Return the shapes and dtypes of a value of a space, as a value of jax.ShapeDtypeStruct.

    Args:
        space: Space of any kind.
    """
    return unflatten(space, (jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaf_spaces(space)))


def choice_counts(space: Space) -> list[int]:
    """Return the number of choices of each discrete entry of a value; entries of a Box are skipped.

    Args:
        space: Space of any kind.
    """
    return [n for leaf in leaf_spaces(space) if not isinstance(leaf, Box) for n in leaf.choices]


def action_from_indices(space: Space, indices: jax.Array) -> Any:
    """Return the actions that are given by the indices of their choices.

    Indices start at 0, values at the lowest value of the space.

    Args:
        space: Action space without a Box.
        indices: Indices, shape [*batch, choices], or [*batch] for a Discrete space.

    Returns:
        Actions, leaves [*batch, ...].
    """
    if isinstance(space, Discrete):
        return indices + space.start if space.start else indices
    parts, batch = leaf_spaces(space), indices.shape[:-1]
    ends = np.cumsum([math.prod(leaf.shape) for leaf in parts])[:-1]
    pieces = zip(parts, jnp.split(indices, ends, axis=-1), strict=True)
    shaped = ((part.reshape(*batch, *leaf.shape) + leaf.bounds[0]).astype(leaf.dtype) for leaf, part in pieces)
    return unflatten(space, shaped)


def action_to_indices(space: Space, action: Any) -> jax.Array:
    """Return the indices of the choices of actions, as `action_from_indices` takes them.

    Args:
        space: Action space without a Box.
        action: Actions, leaves [*batch, ...].
    """
    if isinstance(space, Discrete):
        return action_to_index(space, action)
    parts = zip(leaf_spaces(space), flatten(space, action), strict=True)
    found = [
        (jnp.asarray(x, jnp.int32) - leaf.bounds[0]).reshape(*x.shape[: x.ndim - len(leaf.shape)], -1)
        for leaf, x in parts
    ]
    return jnp.concatenate(found, -1)


def action_to_index(space: Space, action: jax.Array) -> jax.Array:
    """Return the index of an action of a Discrete space, from 0; actions of other spaces are returned unchanged.

    Args:
        space: Action space.
        action: Actions, shape [*batch].
    """
    return action - space.start if isinstance(space, Discrete) and space.start else action
