"""A target to walk to on a grid."""

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
    position: Int[Array, " 2"]  # from the centre
    target: Int[Array, " 2"]
    steps: Int[Array, ""]
    hit: Bool[Array, ""]


@dataclass(frozen=True)
class Grid:
    """From the centre of a square of side 2 distance + 1 to a target drawn from its other places.

    Reaching it ends the episode with reward 1; leaving the grid, or the last step without it, with reward -1: an end of
    the task, no time limit. The observation is where the agent and the target are, in units of distance; an agent that
    has left is seen at the edge; with `image` it is the grid's cells: 0, 1 of the agent, 2 of the target. Score: the
    target was reached.
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
        """The observation."""
        if self.image:
            line = np.arange(-self.distance, self.distance + 1)
            cells = np.stack(np.meshgrid(line, line, indexing="ij"), -1)
            places = env_state.position, env_state.target
            agent, target = ((cells == place).all(-1, keepdims=True) for place in places)
            return jnp.where(agent, 1, jnp.where(target, 2, 0)).astype(jnp.uint8)
        return jnp.concatenate([env_state.position, env_state.target]) / self.distance

    def render(self, env_state: GridState) -> screen.Picture:
        """A pixel for each cell."""
        side = 2 * self.distance + 1
        rows, columns = np.mgrid[:side, :side] - self.distance
        picture = screen.create_picture(side, side)
        for place, color in ((env_state.target, screen.RED), (env_state.position, screen.CYAN)):
            picture = screen.paint(picture, (rows == place[0]) & (columns == place[1]), color)
        return picture

    def render_frames(self, states: Sequence[GridState]) -> list[np.ndarray]:
        """Render the screens of states."""
        return screen.render_screens(self, states)

    def score(self, env_state: GridState) -> Float[Array, ""]:
        return env_state.hit.astype(jnp.float32)
