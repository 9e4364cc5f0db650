"""Copies of one environment, all stepped at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from evorl import tree
from evorl.errors import OptionError, require, unknown_name_error
from evorl.keys import require_key
from evorl.spaces import groups, to_shape_structs
from evorl.types import Env, HasEpisodeInfo, HasRankingGroup, Key, Level, LevelEnv, Memory, TimeStep, Transition
from evorl.vector_env import hosts
from evorl.vector_env.episodes import SUMMARIES, EnvInstance

BatchPolicyFn = Callable[[Any, Memory, Key], tuple[Any, Memory, dict[str, Any]]]


@dataclass(frozen=True)
class EnvBatch:
    """n copies of an environment with the same params, and the memory with which an episode begins.

    Of several devices each has n of `total_envs`.
    """

    env: Env
    params: Any
    memory: Memory
    num_envs: int
    num_shards: int = 1

    @property
    def total_envs(self) -> int:
        """Copies on all devices."""
        return self.num_envs * self.num_shards

    def reset(self, keys: Key) -> tuple[Any, Any]:
        """A start for each of keys [...], a state and an observation, leaves [..., ...]."""
        require_key(keys)
        if keys.ndim:
            return jax.vmap(self.reset)(keys)
        with jax.named_scope("environment"):
            return self.env.reset(keys, self.params)

    @property
    def hosted(self) -> bool:
        """Whether the environment lives on the host, where only those are touched that act or begin."""
        return hosts.find_host_params(self.params) is not None

    @property
    def wait_count(self) -> int:
        """For how many of its environments a step waits on the host; 0 for all."""
        host = hosts.find_host_params(self.params)
        return 0 if host is None else -(-min(host.batch, self.total_envs) * self.num_envs // self.total_envs)

    def pending_mask(self, envs: EnvInstance) -> Bool[Array, " n"]:
        """Which environments have sent an action to the host that has not been answered."""
        host = hosts.find_host_state(envs.env_state)
        return host.pending & (host.lease > 0)

    def reset_on_host(self, keys: Key, asked: hosts.HostRequest) -> tuple[Any, Any]:
        """What reset answers on the host for keys [n], leaves [n, ...]."""
        with jax.named_scope("environment"):
            return jax.vmap(self.env.reset)(keys, asked.to_env_params(self.params))

    def reset_to_levels(self, keys: Key, levels: Level) -> tuple[Any, Any]:
        """A start on each of levels, leaves [n, ...]; raises OptionError where the environment has none."""
        with jax.named_scope("environment"):
            return jax.vmap(require_level_env(self.env).reset_to_level)(keys, levels)

    @property
    def episode_info_spec(self) -> dict[str, str]:
        """What of its info the environment summarizes, and how."""
        return dict(self.env.episode_info) if isinstance(self.env, HasEpisodeInfo) else {}

    @property
    def ranking_group(self) -> str | None:
        """Of a game the group whose return ranks, "" for all; else None. Raises OptionError."""
        teams = groups(self.env.action_space)
        named = self.env.ranked if isinstance(self.env, HasRankingGroup) else ""
        if named and named not in teams:
            raise unknown_name_error("ranked", named, teams)
        return named if teams else None

    def timestep_shapes(self, env_state: Any) -> TimeStep:
        """What an action in a state, leaves [n, ...], is answered, by its shapes."""

        def trace_step() -> TimeStep:
            keys = jax.random.split(jax.random.key(0), self.num_envs)
            return self.step(keys, env_state, jax.vmap(self.env.action_space.sample)(keys))[1]

        return jax.eval_shape(trace_step)

    def init_envs(self, starts: tuple[Any, Any]) -> EnvInstance:
        """The environments at starts, leaves [n, ...].

        Raises OptionError where an observation is not as declared, or a summary is of what is not there.
        """
        seen = self.timestep_shapes(starts[0])
        self._check_obs("reset", starts[1])
        self._check_obs("step", seen.obs)
        for name, how in self.episode_info_spec.items():
            require(how in SUMMARIES, f"episode_info[{name!r}]", how, f"must be one of {', '.join(SUMMARIES)}")
            if name not in seen.info:
                raise unknown_name_error("episode_info", name, seen.info)
        learned = () if isinstance(seen.task_reward, tuple) else seen.reward
        none = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (seen.raw_reward, seen.info, learned))
        info = {name: none[1][name] for name in self.episode_info_spec}
        gone = () if seen.member_ends is None else tree.zeros_like(seen.member_ends.truncated)
        memory, length = tree.broadcast(self.memory, self.num_envs), jnp.zeros(self.num_envs, jnp.int32)
        return EnvInstance(*starts, memory, none[0], length, info, gone, learned_return=none[2])

    def _check_obs(self, where: str, obs: Any) -> None:
        """Raises OptionError where observations, leaves [n, ...], are not of the shapes and dtypes declared."""
        found = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), obs)
        for fault in tree.find_mismatches(f"{where}: obs", found, to_shape_structs(self.env.observation_space)):
            raise OptionError(f"env={type(self.env).__name__}: {fault}, as its observation_space is")

    def restart(self, envs: EnvInstance, starts: tuple[Any, Any], where: Bool[Array, "*n"]) -> EnvInstance:
        """The environments, at starts, leaves [n, ...], where so, [n] or []."""
        none = tree.zeros_like((envs.episode_return, envs.episode_length, envs.episode_info, envs.members_done))
        learned, memory = tree.zeros_like(envs.learned_return), tree.broadcast(self.memory, self.num_envs)
        return tree.select(where, EnvInstance(*starts, memory, *none, envs.pending_step, learned), envs)

    def init_or_restart(
        self, first: tuple[Any, Any], envs: EnvInstance | None, where: Bool[Array, "*n"]
    ) -> EnvInstance:
        """The environments, at first, leaves [n, ...], where so, [n] or []; all of them where there are none yet."""
        return self.init_envs(first) if envs is None else self.restart(envs, first, where)

    def interact(
        self, policy: BatchPolicyFn, envs: EnvInstance, keys: Key, asked: hosts.HostRequest | None = None
    ) -> tuple[EnvInstance, Transition]:
        """One step of all environments, keys [n]; episodes that end are left at their end. On the host as is asked.

        An environment there that waits takes the step that it has sent, and stays as it is but for that until the
        answer comes.
        """
        key_act, key_step = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        with jax.named_scope("policy"):
            action, memory, extras = policy(envs.obs, envs.memory, key_act)
        sent = (action, memory, extras, jax.random.key_data(key_step)) if self.wait_count else ()
        if envs.pending_step:
            action, memory, extras, data = sent = tree.select(self.pending_mask(envs), envs.pending_step, sent)
            key_step = jax.random.wrap_key_data(data)
        with jax.named_scope("environment"):
            env_state, timestep = self.step(key_step, envs.env_state, action, asked)
        outcome = timestep.reward, timestep.obs, timestep.terminated, timestep.truncated
        ends = () if timestep.member_ends is None else timestep.member_ends
        members = {"member_ends": ends, "members_done": envs.members_done}
        transition = Transition(envs.obs, action, *outcome, extras, memory=envs.memory, **members)
        returns, learned = jax.tree.map(jnp.add, envs.episode_return, timestep.raw_reward), ()
        if not isinstance(envs.learned_return, tuple):
            learned = jax.tree.map(jnp.add, envs.learned_return, timestep.reward)
        info = {
            name: timestep.info[name].astype(jnp.float32) + (0 if how == "last" else envs.episode_info[name])
            for name, how in self.episode_info_spec.items()
        }
        gone = ends if isinstance(ends, tuple) else ends.is_done
        after = EnvInstance(
            env_state, timestep.obs, memory, returns, envs.episode_length + 1, info, gone, sent, learned
        )
        if envs.pending_step:
            waiting = replace(envs, env_state=hosts.copy_host_states(envs.env_state, env_state), pending_step=sent)
            after = tree.select(self.pending_mask(after), waiting, after)
        return after, transition

    def allocate_pending_step(self, policy: BatchPolicyFn, envs: EnvInstance) -> EnvInstance:
        """The environments, with room for what they send where it is not waited for."""
        if not self.wait_count or envs.pending_step:
            return envs
        keys = jax.random.split(jax.random.key(0), self.num_envs)
        sent = jax.eval_shape(lambda: self.interact(policy, envs, keys)[0].pending_step)
        return replace(envs, pending_step=tree.zeros_like(sent))

    def step(
        self, keys: Key, env_state: Any, action: Any, asked: hosts.HostRequest | None = None
    ) -> tuple[Any, TimeStep]:
        """env.step of all environments, leaves [n, ...]; on the host as is asked."""
        if not self.hosted:
            return jax.vmap(self.env.step, (0, 0, 0, None))(keys, env_state, action, self.params)
        asked = hosts.HostRequest(jnp.ones(self.num_envs, bool)) if asked is None else asked
        return jax.vmap(self.env.step)(keys, env_state, action, asked.to_env_params(self.params))

    def find_lost_steps(self, after: EnvInstance, transition: Transition) -> Bool[Array, " n"]:
        """Return which steps count nowhere, as a reward or an observation of theirs is NaN or infinite.

        Of environments on the host those without an answer, because the environment has failed.
        """
        if not self.hosted:
            return ~tree.find_finite_rows((transition.obs, transition.reward, transition.next_obs))
        return (hosts.get_leases(after.env_state) <= 0) & ~transition.is_done

    def drop_leases(self, envs: EnvInstance, leaves: Any) -> EnvInstance:
        """The environments; where so, [], without their leases, which others go on with."""
        return tree.select(jnp.asarray(leaves), hosts.clear_leases(envs), envs) if self.hosted else envs

    def release_leases(self, envs: EnvInstance, leaves: Any) -> EnvInstance:
        """The environments, of which nothing on the host is kept where so, []."""
        if not self.hosted:
            return envs
        lease, leaves = hosts.get_leases(envs.env_state), jnp.asarray(leaves)
        keys = jax.random.split(jax.random.key(0), self.num_envs)
        self.reset_on_host(keys, hosts.HostRequest((lease != 0) & leaves, lease, leaves))
        return tree.select(leaves, hosts.clear_leases(envs), envs)

    def summarize_episodes(self, envs: EnvInstance) -> tuple[Any, Any, Any, Any]:
        """The return, the length, the summary and the learned return of episodes that end here, leaves [n, ...]."""
        length = envs.episode_length
        info = {
            name: jax.vmap(jnp.divide)(total, length) if self.episode_info_spec[name] == "mean" else total
            for name, total in envs.episode_info.items()
        }
        return envs.episode_return, length, info, envs.learned_return


def require_level_env(env: Env) -> LevelEnv:
    """The environment; raises OptionError where its episodes are not played on levels."""
    if not isinstance(env, LevelEnv):
        raise OptionError(f"env={type(env).__name__}: has no levels (evorl.types.LevelEnv)")
    return env
