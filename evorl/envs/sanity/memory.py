"""Digits that have to be remembered and repeated."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl.spaces import Discrete
from evorl.types import Key, TimeStep


@struct.dataclass
class DigitMemoryState:
    digits: Int[Array, " length"]
    right: Int[Array, ""]  # digits repeated correctly so far
    steps: Int[Array, ""]


@dataclass(frozen=True)
class DigitMemory:
    """Memory test: binary digits are shown one per step, and after a delay the agent has to repeat them.

    Each correct digit gives reward 1. The observation is the digit, or 2 during the delay and the repetition.
    A policy without memory repeats all digits correctly in 1 / 2^length of the episodes.

    Args:
        length: Number of digits.
        delay: Number of blank steps before the repetition.
    """

    length: int = 2
    delay: int = 2

    default_params = None
    fresh_reset = True
    observation_space = Discrete(3)
    action_space = Discrete(2)

    @property
    def max_episode_steps(self) -> int:
        return 2 * self.length + self.delay

    def reset(self, key: Key, params: Any) -> tuple[DigitMemoryState, Int[Array, ""]]:
        del params
        state = DigitMemoryState(jax.random.randint(key, (self.length,), 0, 2), jnp.int32(0), jnp.int32(0))
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: DigitMemoryState, action: Int[Array, ""], params: Any
    ) -> tuple[DigitMemoryState, TimeStep]:
        del key, params
        recited = env_state.steps - self.length - self.delay
        right = (recited >= 0) & (action == env_state.digits[jnp.maximum(recited, 0)])
        after = DigitMemoryState(env_state.digits, env_state.right + right, env_state.steps + 1)
        over = after.steps >= self.max_episode_steps
        return after, TimeStep(self.observe(after), jnp.float32(right), over, jnp.bool_(False))

    def observe(self, env_state: DigitMemoryState) -> Int[Array, ""]:
        """Return the observation of a state: a digit, or 2 once all digits have been shown.

        Args:
            env_state: State to observe.
        """
        digit = env_state.digits[jnp.minimum(env_state.steps, self.length - 1)]
        return jnp.where(env_state.steps < self.length, digit, 2)

    def score(self, env_state: DigitMemoryState) -> Float[Array, ""]:
        """Return 1 if all digits were repeated correctly, else 0."""
        return (env_state.right == self.length).astype(jnp.float32)
