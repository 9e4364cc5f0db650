"""Two-step game of QMIX."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from evorl.spaces import Box, Dict, Discrete, Members
from evorl.types import Key, TimeStep

PAYOFFS = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], np.float32)  # of the second step, by the selected game


@dataclass(frozen=True)
class TwoStep:
    """Two-step game of QMIX: two agents of the group agent with one common reward.

    In the first step, the action of the first agent selects a matrix game, which is played in the second
    step. After action 0, every joint action has payoff 7. After action 1, the payoffs are [[0, 1], [1, 8]].
    An agent that does not learn the values of both games settles for 7. Both agents observe the state,
    one-hot of three; the global "state" is the same.

    Source: Rashid et al. 2018, arXiv:1803.11485, section 5.
    """

    default_params = None
    fresh_reset = False
    max_episode_steps = 2
    action_space = Dict({"agent": Members(Discrete(2), 2)})
    observation_space = Dict({"agent": Members(Box(0, 1, (3,)), 2), "state": Box(0, 1, (3,))})

    def reset(self, key: Key, params: Any) -> tuple[Int[Array, ""], dict[str, Any]]:
        """Start in state 0; the first step leads to state 1 or 2, the selected game, which the second step keeps."""
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
        """Return the observations of both agents, and the global state.

        Args:
            env_state: State to observe.
        """
        state = jax.nn.one_hot(env_state, 3)
        return {"agent": jnp.stack([state] * 2), "state": state}
