"""Digits to recite after they were shown."""

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
    right: Int[Array, ""]  # recited so far
    steps: Int[Array, ""]


@dataclass(frozen=True)
class DigitMemory:
    """`length` digits, 0 or 1, are shown one per step; after `delay` blank steps they are to be recited, for reward 1
    each that is right.

    The observation is the digit, or 2 where it is blank. Score: all right, which a policy without memory is in
    1 / 2^length of all episodes.
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
        """The observation: a digit, or 2 where it is to be said again."""
        digit = env_state.digits[jnp.minimum(env_state.steps, self.length - 1)]
        return jnp.where(env_state.steps < self.length, digit, 2)

    def score(self, env_state: DigitMemoryState) -> Float[Array, ""]:
        return (env_state.right == self.length).astype(jnp.float32)
