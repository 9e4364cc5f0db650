"""The simple spaces that a space is made of, and the arrays that its values are made of."""

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
    """The members of each group by name, where a space is that of a game; else none."""
    parts = subspaces(space) if isinstance(space, Dict) else []
    return {name: part for name, part in parts if isinstance(part, Members)}


def group_sizes(space: Space) -> dict[str, int]:
    """How many members each group of a game has, by its space."""
    return {name: of.n for name, of in groups(space).items()}


def is_simple(space: Space) -> TypeIs[Simple]:
    """Whether a value is one array."""
    return isinstance(space, Simple)


def leaf_spaces(space: Space) -> list[Simple]:
    """The simple spaces that a space is made of, by name."""
    if isinstance(space, Members):
        return leaf_spaces(space.joint_space)
    if is_simple(space):
        return [space]
    return [leaf for _, part in subspaces(space) for leaf in leaf_spaces(part)]


def flatten(space: Space, value: Any) -> list[Any]:
    """The parts of a value in the order of leaves."""
    if isinstance(space, Members):
        return flatten(space.joint_space, value)
    if is_simple(space):
        return [value]
    return [part for name, of in subspaces(space) for part in flatten(of, value[name])]


def unflatten(space: Space, parts: Iterable[Any]) -> Any:
    """The value of a space that has these parts."""
    if isinstance(space, Members):
        return unflatten(space.joint_space, parts)
    parts = iter(parts)
    if is_simple(space):
        return next(parts)
    values = {name: unflatten(of, parts) for name, of in subspaces(space)}
    return tuple(values.values()) if isinstance(space, Tuple) else values


def map_leaves(space: Space, change: Callable[[Simple], Simple]) -> Space:
    """The space with each simple part changed."""
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
    """The space with numbers of 64 bits as those of 32 that JAX makes of them."""

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
    """The shapes of a value of a space."""
    return unflatten(space, (jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaf_spaces(space)))


def choice_counts(space: Space) -> list[int]:
    """How many there are in each choice that a value of a space makes, its real numbers left out."""
    return [n for leaf in leaf_spaces(space) if not isinstance(leaf, Box) for n in leaf.choices]


def action_from_indices(space: Space, indices: jax.Array) -> Any:
    """The value of a space without a Box whose choices are those of indices, [*batch, choices], of Discrete [*batch].

    Indices are from 0 on, values from where the space has them.
    """
    if isinstance(space, Discrete):
        return indices + space.start if space.start else indices
    parts, batch = leaf_spaces(space), indices.shape[:-1]
    ends = np.cumsum([math.prod(leaf.shape) for leaf in parts])[:-1]
    pieces = zip(parts, jnp.split(indices, ends, axis=-1), strict=True)
    shaped = ((part.reshape(*batch, *leaf.shape) + leaf.bounds[0]).astype(leaf.dtype) for leaf, part in pieces)
    return unflatten(space, shaped)


def action_to_indices(space: Space, action: Any) -> jax.Array:
    """Return the choices of a value of a space without a Box, as action_from_indices takes them."""
    if isinstance(space, Discrete):
        return action_to_index(space, action)
    parts = zip(leaf_spaces(space), flatten(space, action), strict=True)
    found = [
        (jnp.asarray(x, jnp.int32) - leaf.bounds[0]).reshape(*x.shape[: x.ndim - len(leaf.shape)], -1)
        for leaf, x in parts
    ]
    return jnp.concatenate(found, -1)


def action_to_index(space: Space, action: jax.Array) -> jax.Array:
    """Which choice an action of a Discrete is, from 0 on."""
    return action - space.start if isinstance(space, Discrete) and space.start else action
