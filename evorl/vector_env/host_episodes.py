"""Episodes of environments on the host: each begins where one is needed, with a seed of its own."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import tree
from evorl.types import Key
from evorl.vector_env import hosts
from evorl.vector_env.env_batch import EnvBatch
from evorl.vector_env.episodes import EnvInstance


@struct.dataclass
class IdleEnvs:
    """Which environments wait, as they could not begin an episode."""

    mask: Any  # [n] bool


def start_episodes(
    world: EnvBatch, key: Key, group: Int[Array, " n"], envs: EnvInstance | None, restart: Bool[Array, ""]
) -> tuple[EnvInstance, IdleEnvs]:
    """The environments, where they restart, or are in the middle of no episode, at the start of one."""
    keys = jax.random.split(key, world.total_envs)[group]
    lease = jnp.zeros(world.num_envs, jnp.int32) if envs is None else hosts.get_leases(envs.env_state)
    where = restart | (lease <= 0)
    first = world.reset_on_host(keys, hosts.HostRequest(where, jnp.abs(lease)))
    return _enter_episodes(world, first, envs, where, IdleEnvs(jnp.zeros(world.num_envs, bool)))


def request_step(
    world: EnvBatch, keys: Key, acts: Bool[Array, " n"], goes_on: Bool[Array, " n"], begun: Int[Array, " n"]
) -> hosts.HostRequest:
    """What a step asks: that of the environments that act, and, where it ends their episode `begun`, the next one."""
    share = world.wait_count / world.num_envs if world.wait_count else ()
    return hosts.HostRequest(
        acts, autoreset=goes_on, seed=hosts.seeds_from_keys(_episode_keys(keys, begun + 1)), wait_fraction=share
    )


def restart_ended(
    world: EnvBatch, keys: Key, envs: EnvInstance, where: Bool[Array, " n"], episodes: Int[Array, " n"], left: IdleEnvs
) -> tuple[EnvInstance, IdleEnvs]:
    """The environments at the start of an episode where so; `episodes` have begun in each during this play."""

    there = hosts.find_host_state(envs.env_state)
    if not isinstance(there.has_reset, tuple):
        begun = where & there.has_reset
        at_it = world.reset_on_host(keys, hosts.HostRequest(begun, reset_state=there))
        envs, where = world.restart(envs, at_it, begun), where & ~begun

    def restart_once(_: Array, loop: tuple[EnvInstance, IdleEnvs]) -> tuple[EnvInstance, IdleEnvs]:
        envs, left = loop
        first = world.reset_on_host(
            _episode_keys(keys, episodes), hosts.HostRequest(where, jnp.abs(hosts.get_leases(envs.env_state)))
        )
        return _enter_episodes(world, first, envs, where, left)

    return tree.masked_fori_loop(
        where.any().astype(jnp.int32), restart_once, (envs, left)
    )  # most steps begin no episode


def _episode_keys(keys: Key, episodes: Int[Array, " n"]) -> Key:
    """Those of episodes by their number in this play; with keys that interact, which splits its own in two, has not."""
    fold = jax.random.fold_in
    return jax.vmap(lambda key, episode: fold(fold(key, episode), 2))(keys, episodes)


def _enter_episodes(
    world: EnvBatch, first: tuple[Any, Any], envs: EnvInstance | None, where: Bool[Array, " n"], left: IdleEnvs
) -> tuple[EnvInstance, IdleEnvs]:
    envs = world.init_or_restart(first, envs, where)
    return envs, IdleEnvs(left.mask | (where & (hosts.get_leases(envs.env_state) <= 0)))
