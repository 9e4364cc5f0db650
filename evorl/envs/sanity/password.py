"""Password that has to be guessed bit by bit, with a reward only for the whole."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep


@struct.dataclass
class PasswordParams:
    bits: Int[Array | np.ndarray, " length"]


@struct.dataclass
class PasswordState:
    guesses: Float[Array, " length"]  # -1 for bits to come
    steps: Int[Array, ""]
    solved: Bool[Array, ""]


@dataclass(frozen=True)
class Password:
    """Exploration test: each step guesses the next bit of a fixed password.

    After the last bit, the reward is 1 if all bits are right, else 0. The observation is the guesses so far,
    and -1 for the bits to come. The env params (`PasswordParams`) hold the bits.

    Args:
        password: Default password, bits 0 or 1.
    """

    password: tuple[int, ...] = (1, 0, 0, 1, 0)

    fresh_reset = True
    action_space = Discrete(2)

    @property
    def default_params(self) -> PasswordParams:
        return PasswordParams(np.array(self.password, np.int32))

    @property
    def max_episode_steps(self) -> int:
        return len(self.password)

    @property
    def observation_space(self) -> Box:
        return Box(-1.0, 1.0, (len(self.password),))

    def reset(self, key: Key, params: PasswordParams) -> tuple[PasswordState, Float[Array, " length"]]:
        del key, params
        guesses = -jnp.ones(len(self.password))
        return PasswordState(guesses, jnp.int32(0), jnp.bool_(False)), guesses

    def step(
        self, key: Key, env_state: PasswordState, action: Int[Array, ""], params: PasswordParams
    ) -> tuple[PasswordState, TimeStep]:
        del key
        guesses = env_state.guesses.at[env_state.steps].set(action)
        steps = env_state.steps + 1
        solved = (guesses == params.bits).all()
        over = steps >= len(self.password)
        return PasswordState(guesses, steps, solved), TimeStep(guesses, jnp.float32(solved), over, jnp.bool_(False))

    def score(self, env_state: PasswordState) -> Float[Array, ""]:
        """Return 1 if all bits were right, else 0."""
        return env_state.solved.astype(jnp.float32)
