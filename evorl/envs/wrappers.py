"""Environments around environments."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from flax import struct

from evorl.envs.spaces import Space
from evorl.errors import require
from evorl.types import Array, Describes, Env, Key, Metrics, State, TimeStep


@struct.dataclass
class RewardsState:
    inner: Any
    owed: Any  # [] reward not yet given
    steps: Any  # [] int32 since it was last given


@dataclass(frozen=True)
class Rewards:
    """The inner environment with its rewards times `scale`, given in sums every `delay` steps and at an episode's end.

    A delay makes sparse rewards of dense ones (Oh et al. 2018, arXiv:1806.05635, section 5.4).
    """

    inner: Env
    scale: float = 1.0
    delay: int = 1

    def __post_init__(self) -> None:
        require(self.delay >= 1, "delay", self.delay, "must be at least 1")

    @property
    def observation_space(self) -> Space:
        return self.inner.observation_space

    @property
    def action_space(self) -> Space:
        return self.inner.action_space

    @property
    def max_episode_steps(self) -> int:
        return self.inner.max_episode_steps

    @property
    def default_params(self) -> Any:
        return self.inner.default_params

    @property
    def fresh_reset(self) -> bool:
        return self.inner.fresh_reset

    def reset(self, key: Key, params: Any) -> tuple[RewardsState, Any]:
        inner, obs = self.inner.reset(key, params)
        return RewardsState(inner, jnp.float32(0), jnp.int32(0)), obs

    def step(self, key: Key, env_state: State, action: Any, params: Any) -> tuple[RewardsState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        owed, steps = env_state.owed + self.scale * timestep.reward, env_state.steps + 1
        due: Array = (steps >= self.delay) | timestep.terminated | timestep.truncated
        after = RewardsState(inner, jnp.where(due, 0.0, owed), jnp.where(due, 0, steps))
        return after, replace(timestep, reward=jnp.where(due, owed, 0.0))

    def describe(self, env_state: State) -> Metrics:
        return self.inner.describe(env_state.inner) if isinstance(self.inner, Describes) else {}
