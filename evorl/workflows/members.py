"""What the populations share: the keys of their members, which of these are sound, and how they inherit in place."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from evorl import tree
from evorl.replay import join, split
from evorl.types import Key, State


def keys(key: Key, size: int, evaluating: bool | Array) -> Key:
    """[size]: one for each member; where evaluating the same, so that all are compared on the same episodes."""
    return jnp.where(evaluating, tree.broadcast(key, size), jax.random.split(key, size))


def sound(state: State) -> Bool[Array, " size"]:
    """Which members hold no NaN in any real leaf, replays left out."""
    return jax.vmap(tree.has_no_nan)(split(state)[0])


def generation(source: Int[Array, " size"]) -> Int[Array, " size"]:
    """How many ancestors each member has, 0 where it is its own source; members are no ancestors of themselves."""
    n = source.shape[0]
    ancestors = (source != jnp.arange(n)).astype(jnp.int32)
    for _ in range(n.bit_length()):  # which looks twice as far back each time
        ancestors, source = ancestors + ancestors[source], source[source]
    return ancestors


def copy(inherit: Callable[[State, State], State], state: State, source: Int[Array, " size"]) -> State:
    """state with each member i, where source[i] is another one, as inherit(member i, member source[i]) gives it.

    All inherit from what was there before; no member may be its own ancestor. One after the other they are written in
    place, the youngest first, so that memory is needed for one member alone. inherit sees no replay.
    """
    light, replays = split(state)
    ancestors = generation(source)
    youngest_first = jnp.argsort(-ancestors)

    def step(loop: tuple[Array, State]) -> tuple[Array, State]:
        k, state = loop
        i = youngest_first[k]
        own, parent = tree.index(state, i), tree.index(state, source[i])

        def write(leaf: Array, old: Array, new: Array) -> Array:
            return leaf if new is old else tree.put(leaf, i, jnp.where(ancestors[i] > 0, new, old))

        return k + 1, jax.tree.map(write, state, own, inherit(own, parent))

    def unfinished(loop: tuple[Array, State]) -> Array:
        return tree.anywhere((ancestors > 0).sum() > loop[0])

    return join(jax.lax.while_loop(unfinished, step, (jnp.int32(0), light))[1], replays)
