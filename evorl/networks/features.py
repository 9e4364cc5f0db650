"""Observations of any space as the vector that a network takes."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from evorl.envs.spaces import Box, Discrete, MultiDiscrete


def features(space: PyTree, obs: PyTree) -> Float[Array, "*batch features"]:
    """Observations, leaves [*batch, *shape], flat and side by side; whole numbers of a choice become one-hot."""
    leaves, treedef = jax.tree.flatten(space, is_leaf=_is_space)
    return jnp.concatenate([_flat(*pair) for pair in zip(leaves, treedef.flatten_up_to(obs), strict=True)], axis=-1)


def num_features(space: PyTree) -> int:
    """How many numbers that are."""
    sizes = {Box: lambda x: x.size, Discrete: lambda x: x.n, MultiDiscrete: lambda x: sum(x.choices)}
    return sum(sizes[type(leaf)](leaf) for leaf in jax.tree.leaves(space, is_leaf=_is_space))


def _is_space(x: Any) -> bool:
    return isinstance(x, (Box, Discrete, MultiDiscrete))


def _flat(space: Box | Discrete | MultiDiscrete, obs: Array) -> Array:
    match space:
        case Box():
            batch = obs.shape[: obs.ndim - len(space.shape)]
            return obs.reshape(*batch, space.size).astype(jnp.float32)
        case Discrete():
            return jax.nn.one_hot(obs, space.n)
        case MultiDiscrete():
            parts = [jax.nn.one_hot(obs[..., i], n) for i, n in enumerate(space.choices)]
            return jnp.concatenate(parts, axis=-1)
