"""Feature vectors for networks, from observations of any space."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evorl.errors import require
from evorl.spaces import Box, MultiBinary, Simple, Space, flatten, leaf_spaces


def require_space(space: Space | None, name: str) -> None:
    """Raise OptionError if a space has not been set by a workflow."""
    require(space is not None, name, None, "is set by a workflow; without one, give the agent both spaces")


def features(space: Space, obs: Any) -> Float[Array, "*batch features"]:
    """Flatten and concatenate observations, leaves [*batch, *shape], to feature vectors.

    Discrete values become one-hot, MultiBinary values stay unchanged, and integers of a Box (pixels) are
    divided by its largest absolute bound.
    """
    parts = zip(leaf_spaces(space), flatten(space, obs), strict=True)
    return jnp.concatenate([_flatten_leaf(leaf, part) for leaf, part in parts], axis=-1)


def num_features(space: Space) -> int:
    """Return the size of the feature vector of a space."""
    return sum(_leaf_size(leaf) for leaf in leaf_spaces(space))


def scale_pixels(space: Box, obs: Array) -> Float[Array, "..."]:
    """Return the values of a Box as floats; integers (pixels) are divided by its largest absolute bound."""
    x = obs.astype(jnp.float32)
    if not jnp.issubdtype(space.dtype, jnp.integer):
        return x
    return x / (float(np.abs(np.asarray(space.bounds, np.float64)).max()) or 1.0)


def _leaf_size(space: Simple) -> int:
    return math.prod(space.shape) if isinstance(space, Box | MultiBinary) else sum(space.choices)


def _flatten_leaf(space: Simple, obs: Array) -> Array:
    flat = obs.reshape(*obs.shape[: obs.ndim - len(space.shape)], -1)
    match space:
        case Box():
            return scale_pixels(space, flat)
        case MultiBinary():
            return flat.astype(jnp.float32)
    numbers = enumerate(zip(space.choices, np.ravel(space.bounds[0]), strict=True))
    return jnp.concatenate([jax.nn.one_hot(flat[..., i] - start, n) for i, (n, start) in numbers], axis=-1)
