"""Grid on which an agent walks to a target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl.envs.arcade import screen
from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep

MOVES = np.array([(0, 0), (0, -1), (0, 1), (-1, 0), (1, 0)], np.int32)  # stay, down, up, left, right


@struct.dataclass
class GridState:
    position: Int[Array, " 2"]  # relative to the center
    target: Int[Array, " 2"]
    steps: Int[Array, ""]
    hit: Bool[Array, ""]


@dataclass(frozen=True)
class Grid:
    """An agent that walks from the center of a grid, of side 2 `distance` + 1, to a random other cell.

    Reaching the target gives reward 1. Leaving the grid, or not reaching the target within
    `max_episode_steps`, gives reward -1. All three terminate the episode; it is never truncated.

    The observation is the position of the agent and of the target, divided by `distance`. An agent that has
    left the grid is observed at its edge.

    Args:
        distance: Cells from the center to the edge.
        max_episode_steps: Steps after which an episode terminates.
        image: Whether observations are the cells instead, uint8 [side, side, 1]: 1 for the agent, 2 for the
            target, else 0.
    """

    distance: int = 5
    max_episode_steps: int = 33
    image: bool = False

    render_fps = 5.0
    default_params = None
    fresh_reset = True
    action_space = Discrete(len(MOVES))

    @property
    def observation_space(self) -> Box:
        side = 2 * self.distance + 1
        return Box(0, 2, (side, side, 1), "uint8") if self.image else Box(-1.0, 1.0, (4,))

    def reset(self, key: Key, params: Any) -> tuple[GridState, Array]:
        del params
        side = 2 * self.distance + 1
        place = jax.random.randint(key, (), 0, side**2 - 1)
        place += place >= side**2 // 2
        target = jnp.stack([place // side, place % side]) - self.distance
        state = GridState(jnp.zeros(2, jnp.int32), target, jnp.int32(0), jnp.bool_(False))
        return state, self.observe(state)

    def step(self, key: Key, env_state: GridState, action: Int[Array, ""], params: Any) -> tuple[GridState, TimeStep]:
        del key, params
        moved = env_state.position + jnp.asarray(MOVES)[action]
        position = jnp.clip(moved, -self.distance, self.distance)
        hit = (moved == env_state.target).all()
        after = GridState(position, env_state.target, env_state.steps + 1, hit)
        failed = ~hit & ((moved != position).any() | (after.steps >= self.max_episode_steps))
        reward = hit.astype(jnp.float32) - failed.astype(jnp.float32)
        return after, TimeStep(self.observe(after), reward, hit | failed, jnp.bool_(False))

    def observe(self, env_state: GridState) -> Array:
        """Return the observation of a state.

        Args:
            env_state: State to observe.
        """
        if self.image:
            line = np.arange(-self.distance, self.distance + 1)
            cells = np.stack(np.meshgrid(line, line, indexing="ij"), -1)
            places = env_state.position, env_state.target
            agent, target = ((cells == place).all(-1, keepdims=True) for place in places)
            return jnp.where(agent, 1, jnp.where(target, 2, 0)).astype(jnp.uint8)
        return jnp.concatenate([env_state.position, env_state.target]) / self.distance

    def render(self, env_state: GridState) -> screen.Picture:
        """Return an image of a state with one pixel per cell.

        Args:
            env_state: State to render.
        """
        side = 2 * self.distance + 1
        rows, columns = np.mgrid[:side, :side] - self.distance
        picture = screen.create_picture(side, side)
        for place, color in ((env_state.target, screen.RED), (env_state.position, screen.CYAN)):
            picture = screen.paint(picture, (rows == place[0]) & (columns == place[1]), color)
        return picture

    def render_frames(self, states: Sequence[GridState]) -> list[np.ndarray]:
        """Render states.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [height, width, 3].
        """
        return screen.render_screens(self, states)

    def score(self, env_state: GridState) -> Float[Array, ""]:
        """Return 1 if the target was reached, else 0."""
        return env_state.hit.astype(jnp.float32)
