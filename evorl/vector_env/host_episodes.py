"""Episode starts of host environments: each environment resets only when needed, with its own seed."""

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
class HostStarts:
    """Starts from env.reset on the host, only in environments that need a new episode.

    The carry of the starts is a mask [n] of idle environments, which could not start an episode.
    """

    def start_episodes(
        self,
        world: EnvBatch,
        key: Key,
        group: Int[Array, " n"] | None,
        envs: EnvInstance | None,
        restart: Bool[Array, ""],
    ) -> tuple[EnvInstance, Bool[Array, " n"]]:
        """Start an episode in environments that restart or are not within one; return them and the idle mask."""
        keys = jax.random.split(key, world.total_envs)
        keys = keys if group is None else keys[group]
        lease = jnp.zeros(world.num_envs, jnp.int32) if envs is None else hosts.get_leases(envs.env_state)
        where = restart | (lease <= 0)
        first = reset_on_host(world, keys, hosts.HostRequest(where, jnp.abs(lease)))
        return _enter_episodes(world, first, envs, where, jnp.zeros(world.num_envs, bool))

    def restart_ended(
        self,
        world: EnvBatch,
        keys: Key,
        envs: EnvInstance,
        ended: Bool[Array, " n"],
        episodes: Int[Array, " n"],
        starts_state: Bool[Array, " n"],
    ) -> tuple[EnvInstance, Bool[Array, " n"]]:
        """Start an episode in environments whose episode ended; return them and the idle mask.

        The step that ended an episode may already have started the next one (`HostState.has_reset`).
        """
        after_step = hosts.find_host_state(envs.env_state)
        if after_step.has_reset is not None:
            begun = ended & after_step.has_reset
            first = reset_on_host(world, keys, hosts.HostRequest(begun, reset_state=after_step))
            envs, ended = world.restart(envs, first, begun), ended & ~begun

        def restart_once(
            _: Array, carry: tuple[EnvInstance, Bool[Array, " n"]]
        ) -> tuple[EnvInstance, Bool[Array, " n"]]:
            envs, starts_state = carry
            request = hosts.HostRequest(ended, jnp.abs(hosts.get_leases(envs.env_state)))
            first = reset_on_host(world, derive_episode_keys(keys, episodes), request)
            return _enter_episodes(world, first, envs, ended, starts_state)

        # skipped in most steps, which start no episode
        return tree.masked_fori_loop(ended.any().astype(jnp.int32), restart_once, (envs, starts_state))

    def idle_mask(self, starts_state: Bool[Array, " n"]) -> Bool[Array, " n"]:
        return starts_state


def reset_on_host(world: EnvBatch, keys: Key, asked: hosts.HostRequest) -> tuple[Any, Any]:
    """Reset environments on the host as requested, keys [n]; return states and observations, leaves [n, ...]."""
    with jax.named_scope("environment"):
        return jax.vmap(world.env.reset)(keys, asked.to_env_params(world.params))


def derive_episode_keys(keys: Key, episodes: Int[Array, " n"]) -> Key:
    """Return the keys of episodes by their number in this rollout; EnvBatch.interact never derives the same ones."""
    fold = jax.random.fold_in
    return jax.vmap(lambda key, episode: fold(fold(key, episode), 2))(keys, episodes)


def _enter_episodes(
    world: EnvBatch, first: tuple[Any, Any], envs: EnvInstance | None, where: Bool[Array, " n"], starts_state: Array
) -> tuple[EnvInstance, Bool[Array, " n"]]:
    envs = world.init_or_restart(first, envs, where)
    return envs, starts_state | (where & (hosts.get_leases(envs.env_state) <= 0))
