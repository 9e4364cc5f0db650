"""Two actions to play in a given proportion, without seeing what was played."""

from dataclasses import dataclass

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep


@struct.dataclass
class StochasticParams:
    p: Float[Array, ""] | float = 0.7  # how often action 0 is to be played


@struct.dataclass
class StochasticState:
    error: Float[Array, ""]  # (p - f)^2
    count: Int[Array, ""]  # of action 0
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Stochastic:
    """With f the fraction of action 0 so far, this one included, the reward is 1 - (p - f)^2 for the action that leads
    to p, which is 0 where f < p and 1 elsewhere, and 0 for the other.

    The observation is always 0. The episode ends with its last step, which is no time limit: the score,
    1 - (p - f)^2 then, is of exactly so many. No deterministic policy comes above 0.91 at p = 0.7.
    """

    max_episode_steps: int = 100

    default_params = StochasticParams()
    fresh_reset = True
    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key: Key, params: StochasticParams) -> tuple[StochasticState, Float[Array, "1"]]:
        del key, params
        return StochasticState(jnp.float32(0), jnp.int32(0), jnp.int32(0)), jnp.zeros(1)

    def step(
        self, key: Key, env_state: StochasticState, action: Int[Array, ""], params: StochasticParams
    ) -> tuple[StochasticState, TimeStep]:
        del key
        count, steps = env_state.count + (action == 0), env_state.steps + 1
        fraction = count / steps
        error = (params.p - fraction) ** 2
        reward = jnp.where((action == 0) == (fraction < params.p), 1 - error, 0.0)
        over = steps >= self.max_episode_steps
        return StochasticState(error, count, steps), TimeStep(jnp.zeros(1), reward, over, jnp.bool_(False))

    def score(self, env_state: StochasticState) -> Float[Array, ""]:
        return 1 - env_state.error
