"""Observations of any space as the vector that a network takes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evorl.spaces import Box, Discrete, MultiDiscrete, Simple, Space, flatten, leaves


def features(space: Space, obs: Any) -> Float[Array, "*batch features"]:
    """Observations, leaves [*batch, *shape], flat and side by side.

    Whole numbers of a choice become one-hot, those of a Box (pixels) fractions of its largest bound.
    """
    parts = zip(leaves(space), flatten(space, obs), strict=True)
    return jnp.concatenate([_flat(leaf, part) for leaf, part in parts], axis=-1)


def num_features(space: Space) -> int:
    """How many numbers that are."""
    return sum(leaf.size if isinstance(leaf, Box) else sum(leaf.choices) for leaf in leaves(space))


def scaled(space: Box, obs: Array) -> Float[Array, "..."]:
    """The numbers of a Box, whole ones (pixels) as fractions of its largest bound."""
    x = obs.astype(jnp.float32)
    return x / float(np.abs(space.bounds).max()) if jnp.issubdtype(space.dtype, jnp.integer) else x


def _flat(space: Simple, obs: Array) -> Array:
    match space:
        case Box():
            batch = obs.shape[: obs.ndim - len(space.shape)]
            return scaled(space, obs.reshape(*batch, space.size))
        case Discrete():
            return jax.nn.one_hot(obs, space.n)
        case MultiDiscrete():
            parts = [jax.nn.one_hot(obs[..., i], n) for i, n in enumerate(space.choices)]
            return jnp.concatenate(parts, axis=-1)
