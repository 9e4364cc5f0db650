"""One choice among several, of which one is right."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep


@struct.dataclass
class BanditParams:
    arm: Int[Array, ""] | int = 7  # the right one
    noise: Float[Array, ""] | float = 0.0  # std of what is added to every reward


@dataclass(frozen=True)
class Bandit:
    """One step: the right arm gives reward 1, any other 0. The observation says nothing. Score: the right arm."""

    arms: int = 10

    default_params = BanditParams()
    fresh_reset = True
    max_episode_steps = 1
    observation_space = Box(0.0, 1.0, (1,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.arms)

    def reset(self, key: Key, params: BanditParams) -> tuple[Bool[Array, ""], Float[Array, "1"]]:
        """The state is whether the right arm was chosen."""
        del key, params
        return jnp.bool_(False), jnp.ones(1)

    def step(
        self, key: Key, env_state: Bool[Array, ""], action: Int[Array, ""], params: BanditParams
    ) -> tuple[Bool[Array, ""], TimeStep]:
        del env_state
        right = action == params.arm
        reward = right + params.noise * jax.random.normal(key)
        return right, TimeStep(jnp.ones(1), reward, jnp.bool_(True), jnp.bool_(False))

    def score(self, env_state: Bool[Array, ""]) -> Float[Array, ""]:
        return env_state.astype(jnp.float32)
