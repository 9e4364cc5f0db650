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
    Legal,
    Members,
    Privileged,
    Simple,
    Space,
    Tuple,
    bound,
    inner,
)

NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def groups(space: Space) -> dict[str, Members]:
    """The members of each group by name, where a space is that of a game; else none."""
    parts = inner(space) if isinstance(space, Dict) else []
    return {name: part for name, part in parts if isinstance(part, Members)}


def sizes(space: Space) -> dict[str, int]:
    """How many members each group of a game has, by its space."""
    return {name: of.n for name, of in groups(space).items()}


def is_simple(space: Space) -> TypeIs[Simple]:
    """Whether a value is one array."""
    return isinstance(space, Simple)


def leaves(space: Space) -> list[Simple]:
    """The simple spaces that a space is made of, by name."""
    if isinstance(space, Members):
        return leaves(space.joint)
    if is_simple(space):
        return [space]
    return [leaf for _, part in inner(space) for leaf in leaves(part)]


def flatten(space: Space, value: Any) -> list[Any]:
    """The parts of a value in the order of leaves."""
    if isinstance(space, Members):
        return flatten(space.joint, value)
    if is_simple(space):
        return [value]
    return [part for name, of in inner(space) for part in flatten(of, value[name])]


def unflatten(space: Space, parts: Iterable[Any]) -> Any:
    """The value of a space that has these parts."""
    if isinstance(space, Members):
        return unflatten(space.joint, parts)
    parts = iter(parts)
    if is_simple(space):
        return next(parts)
    values = {name: unflatten(of, parts) for name, of in inner(space)}
    return tuple(values.values()) if isinstance(space, Tuple) else values


def mapped(space: Space, change: Callable[[Simple], Simple]) -> Space:
    """The space with each simple part changed."""
    match space:
        case Dict():
            return Dict({name: mapped(part, change) for name, part in space.parts.items()})
        case Tuple():
            return Tuple(tuple(mapped(part, change) for part in space.parts))
        case Legal():
            return Legal(mapped(space.space, change), space.choices)
        case Privileged():
            return Privileged(mapped(space.space, change), mapped(space.state, change))
        case Members():
            return Members(mapped(space.space, change), space.n)
    return change(space)


def narrowed(space: Space) -> Space:
    """The space with numbers of 64 bits as those of 32 that JAX makes of them."""

    def narrow(leaf: Simple) -> Simple:
        if not isinstance(leaf, Box) or leaf.dtype not in NARROWED:
            return leaf
        dtype = NARROWED[leaf.dtype]
        low, high = leaf.bounds
        if np.issubdtype(dtype, np.integer):
            ends = np.iinfo(dtype)
            low, high = np.maximum(low, ends.min), np.minimum(high, ends.max)
        return Box(bound(low.astype(dtype)), bound(high.astype(dtype)), leaf.shape, dtype)

    return mapped(space, narrow)


def shapes(space: Space) -> Any:
    """The shapes of a value of a space."""
    return unflatten(space, (jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves(space)))


def choices(space: Space) -> list[int]:
    """How many there are in each choice that a value of a space makes, its real numbers left out."""
    return [n for leaf in leaves(space) if not isinstance(leaf, Box) for n in leaf.choices]


def chosen(space: Space, indices: jax.Array) -> Any:
    """The value of a space without a Box whose choices are those of indices, [*batch, choices], of Discrete [*batch].

    Indices are from 0 on, values from where the space has them.
    """
    if isinstance(space, Discrete):
        return indices + space.start if space.start else indices
    parts, batch = leaves(space), indices.shape[:-1]
    ends = np.cumsum([math.prod(leaf.shape) for leaf in parts])[:-1]
    pieces = zip(parts, jnp.split(indices, ends, axis=-1), strict=True)
    shaped = ((part.reshape(*batch, *leaf.shape) + leaf.bounds[0]).astype(leaf.dtype) for leaf, part in pieces)
    return unflatten(space, shaped)


def index(space: Space, action: jax.Array) -> jax.Array:
    """Which choice an action of a Discrete is, from 0 on."""
    return action - space.start if isinstance(space, Discrete) and space.start else action
