"""Random keys, which must be typed, as jax.random.key creates them."""

from typing import Any

import jax
import jax.numpy as jnp

from evorl.errors import OptionError, require_int, to_printable

MAX_SEED = 2**32 - 1  # largest seed that a key represents without loss


def require_key(key: Any) -> None:
    """Raise OptionError unless a key, or an array of keys, is typed, not a legacy jax.random.PRNGKey."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        given = to_printable(key) if dtype is None else f"{dtype} {list(key.shape)}"
        raise OptionError(f"key={given}: must be a typed key, jax.random.key(seed), not a PRNGKey")


def key_from_seed(seed: int) -> jax.Array:
    """Return the random key of a seed; raise OptionError unless it is an integer from 0 to 2^32 - 1."""
    require_int("seed", seed, 0, MAX_SEED)
    return jax.random.key(seed)
