"""Multi-armed bandit, in which one arm is right."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep


@struct.dataclass
class BanditParams:
    arm: Int[Array, ""] | int = 7  # the right arm
    noise: Float[Array, ""] | float = 0.0  # standard deviation of the noise on rewards


@dataclass(frozen=True)
class Bandit:
    """Bandit with one step per episode: the right arm gives reward 1, all others 0.

    The observation is constant. The env params (`BanditParams`) set the right arm and the standard deviation
    of the noise that is added to rewards.

    Args:
        arms: Number of arms.
    """

    arms: int = 10

    default_params = BanditParams()
    fresh_reset = True
    max_episode_steps = 1
    observation_space = Box(0.0, 1.0, (1,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.arms)

    def reset(self, key: Key, params: BanditParams) -> tuple[Bool[Array, ""], Float[Array, "1"]]:
        """Return the initial state, which says whether the right arm was chosen, and the observation."""
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
        """Return 1 if the right arm was chosen, else 0."""
        return env_state.astype(jnp.float32)
