"""Game of two agents that have to play their own number."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.spaces import Dict, Discrete, Members
from evorl.types import Key, TimeStep


@dataclass(frozen=True)
class PairGame:
    """Game of one step for two agents, which observe 0 and 1: each that plays its number gives both reward 1."""

    default_params = None
    fresh_reset = True
    max_episode_steps = 1
    observation_space = Dict({"agent": Members(Discrete(2), 2)})
    action_space = Dict({"agent": Members(Discrete(2), 2)})

    def reset(self, key: Key, params: Any) -> tuple[Float[Array, ""], dict[str, Any]]:
        """Return the initial state, which holds the score, and the observations."""
        del key, params
        return jnp.float32(0), {"agent": jnp.arange(2, dtype=jnp.int32)}

    def step(
        self, key: Key, env_state: Float[Array, ""], action: Any, params: Any
    ) -> tuple[Float[Array, ""], TimeStep]:
        del key, env_state, params
        seen = jnp.arange(2, dtype=jnp.int32)
        right = (action["agent"] == seen).astype(jnp.float32)
        reward = {"agent": jnp.stack([right.sum()] * 2)}
        return right.mean(), TimeStep({"agent": seen}, reward, jnp.bool_(True), jnp.bool_(False))

    def score(self, env_state: Float[Array, ""]) -> Float[Array, ""]:
        """Return the fraction of agents that played their number."""
        return env_state
