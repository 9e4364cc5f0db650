"""Cart-pole balancing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from evorl.envs.arcade import screen
from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep

GRAVITY, POLE_MASS, MASS, LENGTH, FORCE, SECONDS = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
FARTHEST, STEEPEST = 2.4, 12 * 2 * np.pi / 360


@struct.dataclass
class CartPoleState:
    x: Float[Array, ""]
    speed: Float[Array, ""]
    angle: Float[Array, ""]
    angular_velocity: Float[Array, ""]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class CartPole:
    """Cart-pole: push a cart to the left (0) or right (1) so that its pole stays up, with reward 1 per step.

    The episode terminates if the angle of the pole exceeds 12 degrees, or the cart is more than 2.4 meters
    from the center. The equations are Gymnasium's. As in PufferLib, each number of the initial state is
    uniform in [-0.04, 0.04], and episodes are truncated after 200 steps; `env=cartpole` on the command line
    is gymnax's CartPole-v1 with 500 steps instead. The observation is the position, the velocity, the angle
    and the angular velocity.

    Args:
        max_episode_steps: Steps after which an episode is truncated.
        image: Whether observations are pictures, uint8 [40, 96, 3], instead of vectors.

    Source: Barto, Sutton & Anderson 1983, doi:10.1109/TSMC.1983.6313077.
    """

    max_episode_steps: int = 200
    image: bool = False

    render_fps = 1 / SECONDS
    default_params = None
    fresh_reset = False
    action_space = Discrete(2)
    action_meanings = ("left", "right")

    @property
    def observation_space(self) -> Box:
        return screen.make_pixel_space(40, 96) if self.image else Box(-np.inf, np.inf, (4,))

    def reset(self, key: Key, params: Any) -> tuple[CartPoleState, Array]:
        del params
        x, speed, angle, turning = jax.random.uniform(key, (4,), minval=-0.04, maxval=0.04)
        state = CartPoleState(x, speed, angle, turning, jnp.int32(0))
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: CartPoleState, action: Int[Array, ""], params: Any
    ) -> tuple[CartPoleState, TimeStep]:
        del key, params
        after = step_physics(env_state, jnp.where(action == 1, FORCE, -FORCE))
        fell = (jnp.abs(after.x) > FARTHEST) | (jnp.abs(after.angle) > STEEPEST)
        late = ~fell & (after.steps >= self.max_episode_steps)
        return after, TimeStep(self.observe(after), jnp.float32(1), fell, late)

    def observe(self, env_state: CartPoleState) -> Array:
        """Return the observation of a state.

        Args:
            env_state: State to observe.
        """
        if self.image:
            return self.render(env_state)
        return jnp.stack([env_state.x, env_state.speed, env_state.angle, env_state.angular_velocity])

    def render(self, env_state: CartPoleState) -> screen.Picture:
        """Render a state as a picture of 16 pixels per meter, uint8 [40, 96, 3].

        Args:
            env_state: State to render.
        """
        picture = screen.paint_box(screen.create_picture(40, 96), 0, 33, 96, 1, screen.GRAY)
        x = 48 + 16 * env_state.x
        picture = screen.paint_box(picture, x - 5, 30, 10, 5, screen.CYAN)
        rows, columns = np.mgrid[:40, :96] + 0.5
        right, up = columns - x, 31 - rows
        along = right * jnp.sin(env_state.angle) + up * jnp.cos(env_state.angle)
        aside = right * jnp.cos(env_state.angle) - up * jnp.sin(env_state.angle)
        return screen.paint(picture, (jnp.abs(aside) < 1) & (along > 0) & (along < 24), screen.RED)

    def render_frames(self, states: Sequence[CartPoleState]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [40, 96, 3].
        """
        return screen.render_screens(self, states)


def step_physics(state: CartPoleState, force: Float[Array, ""]) -> CartPoleState:
    """Return the state 0.02 seconds later, for a force on the cart in newtons."""
    sin, cos = jnp.sin(state.angle), jnp.cos(state.angle)
    push = (force + POLE_MASS * LENGTH * state.angular_velocity**2 * sin) / MASS
    turn = (GRAVITY * sin - cos * push) / (LENGTH * (4 / 3 - POLE_MASS * cos**2 / MASS))
    gain = push - POLE_MASS * LENGTH * turn * cos / MASS
    return CartPoleState(
        state.x + SECONDS * state.speed,
        state.speed + SECONDS * gain,
        state.angle + SECONDS * state.angular_velocity,
        state.angular_velocity + SECONDS * turn,
        state.steps + 1,
    )
