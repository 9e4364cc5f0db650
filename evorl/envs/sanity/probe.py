"""Probe environments, each solved in seconds; the first one that fails shows which part of an agent is wrong.

Observations and actions are scalars, or actions are discrete. The true values are known:

- ConstantReward: one step with reward 1. It tests the critic's loss; the value is 1.
- ObsDependentReward: one step; observation and reward are both +1 or both -1. It tests the critic's input;
  the value is the observation.
- DelayedReward: two steps with observations 0 and 1, and reward 1 at the end. It tests discounting; the value
  of observation 0 is the discount.
- ActionDependentReward: one step with reward 1 - (action - 0.5)^2. It tests the actor's loss; the best action
  is 0.5.
- ObsActionReward: one step with reward 1 - (action - observation / 2)^2. It tests the actor's input; the best
  action is observation / 2.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl.spaces import Box, Discrete, Space
from evorl.types import Key, TimeStep


@struct.dataclass
class ProbeState:
    obs: Float[Array, " 1"]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Probe(ABC):
    """Base class of the probe environments.

    Args:
        continuing: Whether the end is a truncation instead of a termination, so that values must bootstrap
            beyond it.
        num_actions: Number of discrete actions, which stand for evenly spaced values from -1 to 1; 0 makes
            actions continuous.
    """

    continuing: bool = False
    num_actions: int = 0

    default_params = None
    fresh_reset = True
    max_episode_steps = 1
    observation_space = Box(-1.0, 1.0, (1,))

    @property
    def action_space(self) -> Space:
        return Discrete(self.num_actions) if self.num_actions else Box(-1.0, 1.0, (1,))

    def reset(self, key: Key, params: Any) -> tuple[ProbeState, Array]:
        del params
        obs = self.sample_initial_obs(key)
        return ProbeState(obs, jnp.int32(0)), obs

    def step(self, key: Key, env_state: ProbeState, action: Array, params: Any) -> tuple[ProbeState, TimeStep]:
        del key, params
        number = 2 * action / (self.num_actions - 1) - 1 if self.num_actions else jnp.clip(action[0], -1, 1)
        reward = self.reward(env_state.obs[0], number)
        after = ProbeState(self.advance_obs(env_state.obs), env_state.steps + 1)
        over = after.steps >= self.max_episode_steps
        return after, TimeStep(after.obs, reward, over & (not self.continuing), over & self.continuing)

    def sample_initial_obs(self, key: Key) -> Array:
        """Draw the first observation, shape [1]."""
        del key
        return jnp.zeros(1)

    def advance_obs(self, obs: Array) -> Array:
        """Return the observation after this one, shape [1]."""
        return obs

    @abstractmethod
    def reward(self, obs: Array, action: Array) -> Array:
        """Return the reward of an action after an observation, both shape []."""
        ...


class ConstantReward(Probe):
    def reward(self, obs: Array, action: Array) -> Array:
        return jnp.float32(1)


class ObsDependentReward(Probe):
    def sample_initial_obs(self, key: Key) -> Array:
        return jax.random.rademacher(key, (1,), jnp.float32)

    def reward(self, obs: Array, action: Array) -> Array:
        return obs


class DelayedReward(Probe):
    max_episode_steps = 2
    observation_space = Box(0.0, 2.0, (1,))  # 2 after the end

    def advance_obs(self, obs: Array) -> Array:
        return obs + 1

    def reward(self, obs: Array, action: Array) -> Array:
        return obs


class ActionDependentReward(Probe):
    def reward(self, obs: Array, action: Array) -> Array:
        return 1 - (action - 0.5) ** 2


class ObsActionReward(Probe):
    def sample_initial_obs(self, key: Key) -> Array:
        return jax.random.rademacher(key, (1,), jnp.float32)

    def reward(self, obs: Array, action: Array) -> Array:
        return 1 - (action - obs / 2) ** 2
