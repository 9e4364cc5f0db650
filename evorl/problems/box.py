"""Parameters within bounds."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.types import Bound, Key


def sample_uniform(key: Key, bounds: tuple[Bound, Bound], size: int) -> Float[Array, " size"]:
    """Sample parameters uniformly within finite bounds, shape [size]."""
    low, high = (jnp.asarray(bound, jnp.float32) for bound in bounds)
    return low + (high - low) * jax.random.uniform(key, (size,))
