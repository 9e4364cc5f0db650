"""The two-step game of QMIX."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from evorl.spaces import Box, Dict, Discrete, Members
from evorl.types import Key, TimeStep

PAYOFFS = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], np.float32)  # in the second step, by what the first led to


@dataclass(frozen=True)
class TwoStep:
    """Two agents of one group, agent, paid the same. In the first step the first one's action chooses a game.

    After 0 every joint action pays 7, after 1 [[0, 1], [1, 8]]: who does not know both values plays for 7 (Rashid et
    al. 2018, arXiv:1803.11485, section 5). Both see which of the three states it is; "state" is the same.
    """

    default_params = None
    fresh_reset = False
    max_episode_steps = 2
    action_space = Dict({"agent": Members(Discrete(2), 2)})
    observation_space = Dict({"agent": Members(Box(0, 1, (3,)), 2), "state": Box(0, 1, (3,))})

    def reset(self, key: Key, params: Any) -> tuple[Int[Array, ""], dict[str, Any]]:
        """The state is 0, then 1 or 2 by the game that was chosen; at the end it stays what it was."""
        del key, params
        return jnp.int32(0), self.observe(jnp.int32(0))

    def step(self, key: Key, env_state: Int[Array, ""], action: Any, params: Any) -> tuple[Int[Array, ""], TimeStep]:
        del key, params
        first, second = action["agent"]
        over = env_state > 0
        reward = jnp.where(over, jnp.asarray(PAYOFFS)[env_state - 1, first, second], 0.0)
        state = jnp.where(over, env_state, 1 + first)
        return state, TimeStep(self.observe(state), {"agent": jnp.stack([reward] * 2)}, over, jnp.bool_(False))

    def observe(self, env_state: Int[Array, ""]) -> dict[str, Any]:
        """What both observe."""
        state = jax.nn.one_hot(env_state, 3)
        return {"agent": jnp.stack([state] * 2), "state": state}
