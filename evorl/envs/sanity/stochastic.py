"""Two actions that have to be played in a given proportion, without observing past actions."""

from dataclasses import dataclass

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep


@struct.dataclass
class StochasticParams:
    p: Float[Array, ""] | float = 0.7  # target fraction of action 0


@struct.dataclass
class StochasticState:
    error: Float[Array, ""]  # (p - f)^2
    count: Int[Array, ""]  # of action 0
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Stochastic:
    """Test of stochastic policies: action 0 has to be played a fraction p of the time.

    Let f be the fraction of action 0 so far, including the current step. The action that moves f toward p
    gets reward 1 - (p - f)^2, the other one 0. The right action is 0 if f < p, and 1 otherwise. The
    observation is always 0. No deterministic policy gets a score above 0.91 at p = 0.7. The env params
    (`StochasticParams`) hold p.

    Args:
        max_episode_steps: Steps after which an episode terminates. It is not a time limit, because the score
            is defined for exactly this number of steps.
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
        """Return 1 - (p - f)^2 at the end of the episode."""
        return 1 - env_state.error
