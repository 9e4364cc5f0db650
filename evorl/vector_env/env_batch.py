"""Batch of copies of one environment, which step together."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from evorl import tree
from evorl.errors import OptionError, require, unknown_name_error
from evorl.keys import require_key
from evorl.spaces import groups, to_shape_structs
from evorl.types import Env, HasEpisodeInfo, HasRankingGroup, Key, Level, LevelEnv, Memory, TimeStep, Transition
from evorl.vector_env.episodes import SUMMARIES, EnvInstance

Choice = tuple[Any, Memory, dict[str, Any]]  # action, next recurrent state, extras; leaves [n, ...]
BatchPolicyFn = Callable[[Any, Memory, Key], Choice]


@dataclass(frozen=True)
class EnvBatch:
    """Batch of n copies of an environment with the same parameters.

    `memory` is the recurrent state with which an episode starts. Each of `num_shards` devices has n
    of the `total_envs` copies in each of `num_blocks` blocks, which run one after the other.
    """

    env: Env
    params: PyTree
    memory: Memory
    num_envs: int
    num_shards: int = 1
    num_blocks: int = 1

    @property
    def total_envs(self) -> int:
        """Return the number of copies on all devices and in all blocks."""
        return self.num_envs * self.num_shards * self.num_blocks

    def reset(self, keys: Key) -> tuple[Any, Any]:
        """Reset one environment for each of the keys, and return states and observations, leaves [*keys, ...]."""
        require_key(keys)
        if keys.ndim:
            return jax.vmap(self.reset)(keys)
        with jax.named_scope("environment"):
            return self.env.reset(keys, self.params)

    def reset_to_levels(self, keys: Key, levels: Level) -> tuple[Any, Any]:
        """Reset the environments to levels, leaves [n, ...]; raise OptionError if the environment has no levels."""
        with jax.named_scope("environment"):
            return jax.vmap(require_level_env(self.env).reset_to_level)(keys, levels)

    @property
    def episode_info_spec(self) -> dict[str, str]:
        """Return the names of the entries of `info` that are summarized per episode, and how: sum, mean or last."""
        return dict(self.env.episode_info) if isinstance(self.env, HasEpisodeInfo) else {}

    @property
    def ranking_group(self) -> str | None:
        """Return the group by whose return policies are ranked, "" for all; None with a single agent.

        Raises:
            OptionError: If the environment names a group that does not exist.
        """
        teams = groups(self.env.action_space)
        named = self.env.ranked if isinstance(self.env, HasRankingGroup) else ""
        if named and named not in teams:
            raise unknown_name_error("ranked", named, teams)
        return named if teams else None

    def timestep_shapes(self, env_state: Any) -> TimeStep:
        """Return the shapes of the time steps that actions in the states return, leaves [n, ...]."""

        def trace_step() -> TimeStep:
            keys = jax.random.split(jax.random.key(0), self.num_envs)
            return self.step(keys, env_state, jax.vmap(self.env.action_space.sample)(keys))[1]

        return jax.eval_shape(trace_step)

    def init_envs(self, starts: tuple[Any, Any]) -> EnvInstance:
        """Create the environments at starts, leaves [n, ...], with empty episode statistics.

        Raises:
            OptionError: If an observation differs from the declared space, if an episode does not end by
                booleans, or if `episode_info` names a missing entry of `info` or an unknown summary.
        """
        seen = self.timestep_shapes(starts[0])
        space = to_shape_structs(self.env.observation_space)
        for where, obs in (("reset", starts[1]), ("step", seen.obs)):
            self._require_shapes(f"{where}: obs", obs, space, ", as its observation_space declares")
        ends = {"terminated": seen.terminated, "truncated": seen.truncated}  # ~1 of an integer is -2, not False
        self._require_shapes("step", ends, dict.fromkeys(ends, jax.ShapeDtypeStruct((), jnp.bool_)))
        for name, how in self.episode_info_spec.items():
            require(how in SUMMARIES, f"episode_info[{name!r}]", how, f"must be one of {', '.join(SUMMARIES)}")
            if name not in seen.info:
                raise unknown_name_error("episode_info", name, seen.info)
        zeros = lambda shapes: jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shapes)  # noqa: E731
        return EnvInstance(
            *starts,
            memory=tree.broadcast(self.memory, self.num_envs),
            episode_return=zeros(seen.raw_reward),
            episode_length=jnp.zeros(self.num_envs, jnp.int32),
            episode_info=zeros({name: seen.info[name] for name in self.episode_info_spec}),
            members_done=None if seen.member_ends is None else tree.zeros_like(seen.member_ends.truncated),
            learned_return=None if seen.task_reward is None else zeros(seen.reward),
        )

    def _require_shapes(self, where: str, values: Any, wanted: Any, because: str = "") -> None:
        """Raise OptionError if values, leaves [n, ...], do not have the wanted shapes of one environment and dtypes."""
        found = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), values)
        for fault in tree.find_mismatches(where, found, wanted):
            raise OptionError(f"env={type(self.env).__name__}: {fault}{because}")

    def restart(self, envs: EnvInstance, starts: tuple[Any, Any], where: Bool[Array, "*n"]) -> EnvInstance:
        """Restart the environments selected by the mask `where`, [n] or [], at starts, leaves [n, ...]."""
        so_far = "episode_return", "episode_length", "episode_info", "members_done", "learned_return"
        fresh = {name: tree.zeros_like(getattr(envs, name)) for name in so_far}
        memory = tree.broadcast(self.memory, self.num_envs)
        return tree.select(where, replace(envs, env_state=starts[0], obs=starts[1], memory=memory, **fresh), envs)

    def init_or_restart(
        self, first: tuple[Any, Any], envs: EnvInstance | None, where: Bool[Array, "*n"]
    ) -> EnvInstance:
        """Restart the environments selected by the mask `where`, [n] or [], or create all of them if envs is None.

        `first` are the starts, leaves [n, ...].
        """
        return self.init_envs(first) if envs is None else self.restart(envs, first, where)

    def interact(self, policy: BatchPolicyFn, envs: EnvInstance, keys: Key) -> tuple[EnvInstance, Transition]:
        """Let the policy act for one step in all environments, with keys [n]; return them and the transitions.

        An environment whose episode ends is not reset.
        """
        key_act, key_step = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        choice = choose_actions(policy, envs, key_act)
        with jax.named_scope("environment"):
            answer = self.step(key_step, envs.env_state, choice[0])
        return self.record_step(envs, choice, answer)

    def step(self, keys: Key, env_state: Any, action: Any) -> tuple[Any, TimeStep]:
        """Step all environments and return their states and time steps, leaves [n, ...]."""
        return jax.vmap(self.env.step, (0, 0, 0, None))(keys, env_state, action, self.params)

    def record_step(
        self, envs: EnvInstance, choice: Choice, answer: tuple[Any, TimeStep]
    ) -> tuple[EnvInstance, Transition]:
        """Return the environments after a step, with updated episode statistics, and the transitions.

        All leaves are [n, ...].

        Args:
            envs: Environments before the step.
            choice: Output of the policy: actions, recurrent state and extras.
            answer: States and time steps that `step` returned for these actions.
        """
        (action, memory, extras), (env_state, timestep) = choice, answer
        outcome = timestep.reward, timestep.obs, timestep.terminated, timestep.truncated
        ends = timestep.member_ends
        members = {"member_ends": ends, "members_done": envs.members_done}
        transition = Transition(envs.obs, action, *outcome, extras, memory=envs.memory, **members)
        returns, learned = jax.tree.map(jnp.add, envs.episode_return, timestep.raw_reward), None
        if envs.learned_return is not None:
            learned = jax.tree.map(jnp.add, envs.learned_return, timestep.reward)
        info = {
            name: timestep.info[name].astype(jnp.float32) + (0 if how == "last" else envs.episode_info[name])
            for name, how in self.episode_info_spec.items()
        }
        after = replace(
            envs,
            env_state=env_state,
            obs=timestep.obs,
            memory=memory,
            episode_return=returns,
            episode_length=envs.episode_length + 1,
            episode_info=info,
            members_done=None if ends is None else ends.is_done,
            learned_return=learned,
        )
        return after, transition

    def summarize_episodes(self, envs: EnvInstance) -> tuple[Any, Any, Any, Any]:
        """Return the return, length, info summary and learned return of episodes that end here, leaves [n, ...]."""
        length = envs.episode_length
        info = {
            name: jax.vmap(jnp.divide)(total, length) if self.episode_info_spec[name] == "mean" else total
            for name, total in envs.episode_info.items()
        }
        return envs.episode_return, length, info, envs.learned_return


def choose_actions(policy: BatchPolicyFn, envs: EnvInstance, keys: Key) -> Choice:
    """Return the output of the policy in all environments, with keys [n]."""
    with jax.named_scope("policy"):
        return policy(envs.obs, envs.memory, keys)


def require_level_env(env: Env) -> LevelEnv:
    """Return the environment; raise OptionError if its episodes are not played on levels."""
    if not isinstance(env, LevelEnv):
        raise OptionError(f"env={type(env).__name__}: has no levels (evorl.types.LevelEnv)")
    return env
