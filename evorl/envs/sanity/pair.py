"""Two agents that see their number and must play it, as one agent with two observations and two actions."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from evorl.spaces import MultiDiscrete
from evorl.types import Key, TimeStep


@dataclass(frozen=True)
class Pair:
    """One step: the agents see 0 and 1, and each that plays what it sees gives reward 1. Score: the part that does."""

    default_params = ()
    fresh_reset = True
    max_episode_steps = 1
    observation_space = MultiDiscrete((2, 2))
    action_space = MultiDiscrete((2, 2))

    def reset(self, key: Key, params: Any) -> tuple[Float[Array, ""], Int[Array, "2"]]:
        """The state is the score."""
        del key, params
        return jnp.float32(0), jnp.arange(2, dtype=jnp.int32)

    def step(
        self, key: Key, env_state: Float[Array, ""], action: Int[Array, "2"], params: Any
    ) -> tuple[Float[Array, ""], TimeStep]:
        del key, env_state, params
        seen = jnp.arange(2, dtype=jnp.int32)
        right = (action == seen).astype(jnp.float32)
        return right.mean(), TimeStep(seen, right.sum(), jnp.bool_(True), jnp.bool_(False))

    def score(self, env_state: Float[Array, ""]) -> Float[Array, ""]:
        return env_state
