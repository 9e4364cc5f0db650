"""Random keys as evorl takes them: typed ones, as jax.random.key makes them."""

from typing import Any

import jax
import jax.numpy as jnp

from evorl.errors import OptionError, require_int, to_printable

MAX_SEED = 2**32 - 1  # that a key is made of without loss


def require_key(key: Any) -> None:
    """Raises OptionError unless a key, or an array of keys, is typed; legacy ones (jax.random.PRNGKey) are words."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        given = to_printable(key) if dtype is None else f"{dtype} {list(key.shape)}"
        raise OptionError(f"key={given}: must be a typed key, jax.random.key(seed), and no PRNGKey")


def key_from_seed(seed: int) -> jax.Array:
    """Return the key of a seed; raises OptionError where it is no whole number from 0 to 2^32 - 1."""
    require_int("seed", seed, 0, MAX_SEED)
    return jax.random.key(seed)
