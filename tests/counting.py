"""Environments that tests can count with."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from evorl.spaces import Box
from evorl.types import TimeStep


@dataclass(frozen=True)
class Counting:
    """Observation: (steps so far, length of this episode). Ends after `length` steps, by termination where odd.

    The length is drawn from 1 to longest. reset holds the one digamma of a program, step the one lgamma.
    """

    longest: int = 7
    max_episode_steps: int = 7
    fresh_reset: bool = False

    default_params = None
    observation_space = Box(-float("inf"), float("inf"), (2,))
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, key, params):
        length = jax.random.randint(key, (), 1, self.longest + 1)
        length = jnp.float32(length)
        state = jnp.stack([0 * jax.lax.digamma(length), length])
        return state, state

    def step(self, key, env_state, action, params):
        state = env_state + jnp.array([1.0, 0.0])
        over = state[0] >= state[1]
        odd = state[1] % 2 == 1
        reward = jnp.float32(1) + 0 * jax.lax.lgamma(state[0]) + 0 * action[0]
        return state, TimeStep(state, reward, over & odd, over & ~odd)
