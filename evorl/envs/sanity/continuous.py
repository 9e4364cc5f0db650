"""Continuous control of a point that has to reach a target."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl.spaces import Box
from evorl.types import Key, TimeStep


@struct.dataclass
class ContinuousParams:
    acceleration: Float[Array, ""] | float = 0.1  # of an action of 1, per step
    radius: Float[Array, ""] | float = 0.1  # of the target


@struct.dataclass
class ContinuousState:
    position: Float[Array, " 2"]
    velocity: Float[Array, " 2"]
    target: Float[Array, " 2"]
    steps: Int[Array, ""]
    hit: Bool[Array, ""]


@dataclass(frozen=True)
class Continuous:
    """A point that is accelerated to reach a target; start and target are uniform in [-1, 1]^2.

    The point starts at rest. Reaching the target gives reward 5 and leaving the box -1; both terminate the
    episode. Every other step gives 0.02 (1 - distance). The observation is position, velocity and target. The
    env params (`ContinuousParams`) set the acceleration and the radius of the target.

    Args:
        max_episode_steps: Steps after which an episode is truncated.
    """

    max_episode_steps: int = 100

    default_params = ContinuousParams()
    fresh_reset = True
    observation_space = Box(-2.0, 2.0, (6,))
    action_space = Box(-1.0, 1.0, (2,))

    def reset(self, key: Key, params: ContinuousParams) -> tuple[ContinuousState, Float[Array, "6"]]:
        del params
        position, target = jax.random.uniform(key, (2, 2), minval=-1, maxval=1)
        state = ContinuousState(position, jnp.zeros(2), target, jnp.int32(0), jnp.bool_(False))
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: ContinuousState, action: Float[Array, "2"], params: ContinuousParams
    ) -> tuple[ContinuousState, TimeStep]:
        del key
        velocity = env_state.velocity + params.acceleration * jnp.clip(action, -1, 1)
        position = env_state.position + velocity
        outside = (jnp.abs(position) > 1).any()
        distance = jnp.linalg.norm(position - env_state.target)
        hit = ~outside & (distance < params.radius)
        after = ContinuousState(position, velocity, env_state.target, env_state.steps + 1, hit)
        reward = jnp.where(outside, -1.0, jnp.where(hit, 5.0, 0.02 * (1 - distance)))
        terminated = outside | hit
        truncated = ~terminated & (after.steps >= self.max_episode_steps)
        return after, TimeStep(self.observe(after), reward, terminated, truncated)

    def observe(self, env_state: ContinuousState) -> Float[Array, "6"]:
        """Return the observation of a state: position, velocity and target, clipped to [-2, 2].

        Args:
            env_state: State to observe.
        """
        return jnp.clip(jnp.concatenate([env_state.position, env_state.velocity, env_state.target]), -2, 2)

    def score(self, env_state: ContinuousState) -> Float[Array, ""]:
        """Return 1 if the target was reached, else 0."""
        return env_state.hit.astype(jnp.float32)
