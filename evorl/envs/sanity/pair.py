"""A game of two agents that see their number and must play it."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.spaces import Dict, Discrete, Members
from evorl.types import Key, TimeStep


@dataclass(frozen=True)
class PairGame:
    """One step: the agents see 0 and 1, and each that plays what it sees gives both 1. Score: the part that does."""

    default_params = None
    fresh_reset = True
    max_episode_steps = 1
    observation_space = Dict({"agent": Members(Discrete(2), 2)})
    action_space = Dict({"agent": Members(Discrete(2), 2)})

    def reset(self, key: Key, params: Any) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The state is the score."""
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
        return env_state
