"""Dict observations and Dict actions."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.spaces import Box, Dict, Discrete
from evorl.types import Key, TimeStep


@struct.dataclass
class SpacesState:
    obs: dict[str, Array]
    score: Float[Array, ""]


@dataclass(frozen=True)
class Spaces:
    """Test of nested spaces, with one step: observations and actions are dicts with the parts "flat" and "image".

    For each part, the right action is 1 if the sum of its observation is above 0, and 0 otherwise; each right
    action adds 0.5 to the reward. The flat part holds random integers from -1 to 1, the image uniform numbers
    in [-1, 1].
    """

    default_params = None
    fresh_reset = True
    max_episode_steps = 1
    observation_space = Dict({"flat": Box(-1, 1, (5,), "int8"), "image": Box(-1.0, 1.0, (5, 5))})
    action_space = Dict({"flat": Discrete(2), "image": Discrete(2)})

    def reset(self, key: Key, params: Any) -> tuple[SpacesState, dict[str, Array]]:
        del params
        key_flat, key_image = jax.random.split(key)
        flat = jax.random.randint(key_flat, (5,), -1, 2).astype(jnp.int8)
        obs = {"flat": flat, "image": jax.random.uniform(key_image, (5, 5), minval=-1, maxval=1)}
        return SpacesState(obs, jnp.float32(0)), obs

    def step(
        self, key: Key, env_state: SpacesState, action: dict[str, Array], params: Any
    ) -> tuple[SpacesState, TimeStep]:
        del key, params
        obs = env_state.obs
        right = [(action[name] == 1) == (obs[name].sum(dtype=jnp.float32) > 0) for name in sorted(obs)]
        score = jnp.stack(right).mean(dtype=jnp.float32)
        return SpacesState(obs, score), TimeStep(obs, score, jnp.bool_(True), jnp.bool_(False))

    def score(self, env_state: SpacesState) -> Float[Array, ""]:
        """Return the reward of the episode, from 0 to 1."""
        return env_state.score
