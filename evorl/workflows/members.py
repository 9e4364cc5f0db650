"""What the populations share: the keys of their members and which of these are sound."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from evorl import tree
from evorl.replay import split
from evorl.types import Key, State


def keys(key: Key, size: int, evaluating: bool | Array) -> Key:
    """[size]: one for each member; where evaluating the same, so that all are compared on the same episodes."""
    return jnp.where(evaluating, tree.broadcast(key, size), jax.random.split(key, size))


def sound(state: State) -> Bool[Array, " size"]:
    """Which members hold no NaN in any real leaf, replays left out."""
    return jax.vmap(tree.has_no_nan)(split(state)[0])
