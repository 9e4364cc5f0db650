"""Episodes of environments on the host: each begins where a slot needs it, with a seed of its own."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import tree
from evorl.types import Key
from evorl.vector_env import hosts
from evorl.vector_env.episodes import EnvSlot
from evorl.vector_env.world import World


@struct.dataclass
class Resting:
    """Which slots wait, whose environment could not begin an episode."""

    which: Any  # [n] bool


def begin(
    world: World, key: Key, group: Int[Array, " n"], slots: EnvSlot | None, restart: Bool[Array, ""]
) -> tuple[EnvSlot, Resting]:
    """The slots, where they restart, or are in the middle of no episode, at the start of one."""
    keys = jax.random.split(key, world.total)[group]
    lease = jnp.zeros(world.n, jnp.int32) if slots is None else hosts.leases(slots.env_state)
    where = restart | (lease <= 0)
    first = world.reset_asked(keys, hosts.Asked(where, jnp.abs(lease)))
    return _entered(world, first, slots, where, Resting(jnp.zeros(world.n, bool)))


def asked(
    world: World, keys: Key, acts: Bool[Array, " n"], goes_on: Bool[Array, " n"], begun: Int[Array, " n"]
) -> hosts.Asked:
    """What a step asks: that of the slots that act, and, where it ends their episode number `begun`, the next one."""
    share = world.batch / world.n if world.batch else ()
    return hosts.Asked(acts, goes_on=goes_on, seed=hosts.seeds(_keys(keys, begun + 1)), share=share)


def next_episodes(
    world: World, keys: Key, slots: EnvSlot, where: Bool[Array, " n"], episodes: Int[Array, " n"], left: Resting
) -> tuple[EnvSlot, Resting]:
    """The slots at the start of an episode where so; `episodes` have begun in each during this play."""

    there = hosts.the(slots.env_state)
    if not isinstance(there.begun, tuple):
        begun = where & there.begun
        at_it = world.reset_asked(keys, hosts.Asked(begun, begun=there))
        slots, where = world.restart(slots, at_it, begun), where & ~begun

    def once(_: Array, loop: tuple[EnvSlot, Resting]) -> tuple[EnvSlot, Resting]:
        slots, left = loop
        first = world.reset_asked(_keys(keys, episodes), hosts.Asked(where, jnp.abs(hosts.leases(slots.env_state))))
        return _entered(world, first, slots, where, left)

    return tree.repeat(where.any().astype(jnp.int32), once, (slots, left))  # most steps begin no episode


def _keys(keys: Key, episodes: Int[Array, " n"]) -> Key:
    """Those of episodes by their number in this play; with keys that interact, which splits its own in two, has not."""
    fold = jax.random.fold_in
    return jax.vmap(lambda key, episode: fold(fold(key, episode), 2))(keys, episodes)


def _entered(
    world: World, first: tuple[Any, Any], slots: EnvSlot | None, where: Bool[Array, " n"], left: Resting
) -> tuple[EnvSlot, Resting]:
    slots = world.enter(first, slots, where)
    return slots, Resting(left.which | (where & (hosts.leases(slots.env_state) <= 0)))
