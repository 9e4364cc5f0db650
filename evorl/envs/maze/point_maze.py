"""A point that moves in a square, with walls between the start and the goal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Array, Bool, Float, Int

from evorl.envs import canvas
from evorl.errors import require, require_int
from evorl.spaces import Box
from evorl.types import Key, TimeStep

START, GOAL, NEAR = (0.1, 0.1), (0.9, 0.9), 0.1
WALLS = (  # the first has a gap at the right, the second at the left
    ((0.0, 0.33), (0.75, 0.33)),
    ((0.25, 0.66), (1.0, 0.66)),
)


@struct.dataclass
class PointMazeState:
    position: Float[Array, " 2"]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class PointMaze:
    """Deceptive maze for novelty search: after the first wall, a point must move away from the goal to reach it.

    The robot of the original maze is a point. The path leads to the right, up, back to the left, up, and to
    the right again. The square is [0, 1]^2. A step moves by at most `reach` along each axis, and not through
    a wall. If the distance to the goal is below 0.1, the episode terminates with reward 0. If it is
    truncated, its last reward is minus the distance. The other rewards are 0. The observation is the
    position. The episode info "position" is the position at the end of the episode.

    Args:
        max_episode_steps: Steps after which an episode is truncated.
        reach: Largest move along each axis in a step, above 0, at most 0.2.

    Raises:
        OptionError: If a value is not allowed.

    Source: Lehman & Stanley 2011, doi:10.1162/EVCO_a_00025.
    """

    max_episode_steps: int = 100
    reach: float = 0.05

    default_params = None
    fresh_reset = False
    render_fps = 10.0
    observation_space = Box(0.0, 1.0, (2,))
    action_space = Box(-1.0, 1.0, (2,))
    episode_info = FrozenDict({"position": "last"})

    def __post_init__(self) -> None:
        require_int("max_episode_steps", self.max_episode_steps)
        require(0 < self.reach <= 0.2, "reach", self.reach, "must be above 0, at most 0.2")

    def reset(self, key: Key, params: Any) -> tuple[PointMazeState, Float[Array, "2"]]:
        del key, params
        start = jnp.array(START)
        return PointMazeState(start, jnp.int32(0)), start

    def step(
        self, key: Key, env_state: PointMazeState, action: Float[Array, "2"], params: Any
    ) -> tuple[PointMazeState, TimeStep]:
        del key, params
        before = env_state.position
        wanted = jnp.clip(before + self.reach * jnp.clip(action, -1, 1), 0, 1)
        position = before
        for axis in range(2):  # so that it slides along a wall
            there = position.at[axis].set(wanted[axis])
            position = jnp.where(crosses_wall(position, there), position, there)
        steps, distance = env_state.steps + 1, jnp.linalg.norm(position - np.array(GOAL))
        there = distance < NEAR
        out_of_time = ~there & (steps >= self.max_episode_steps)
        reward = jnp.where(out_of_time, -distance, 0.0)
        return PointMazeState(position, steps), TimeStep(position, reward, there, out_of_time, {"position": position})

    def render_frames(self, states: Sequence[PointMazeState]) -> list[np.ndarray]:
        """Render states: the point, the walls and the goal.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [480, 480, 3].
        """
        return [render_position(np.asarray(state.position)) for state in states]

    def is_solved(self, episode_return: Float[Array, "..."]) -> Bool[Array, "..."]:
        """Return whether the goal was reached, which is the case if the return is 0."""
        return episode_return == 0


def render_position(position: np.ndarray) -> np.ndarray:
    """Render a position in the maze, uint8 [480, 480, 3]."""
    picture = canvas.Canvas(0, 1, 0, 1)
    picture.draw_circle(GOAL, NEAR, canvas.GREEN)
    for wall in WALLS:
        picture.draw_line(wall, 0.015)
    picture.draw_circle(position, 0.025, canvas.BLUE)
    return picture.to_frame()


def crosses_wall(a: Float[Array, "2"], b: Float[Array, "2"]) -> Bool[Array, ""]:
    """Return whether the segment from a to b touches a wall."""
    low, high = np.moveaxis(np.array(WALLS, np.float32), 1, 0)
    along = np.argmax(high - low, 1)  # axis along which each wall extends
    number, across = np.arange(len(low)), 1 - along
    at = low[number, across]
    start, end = a[across], b[across]
    between = (start - at) * (end - at) <= 0
    part = jnp.where(start == end, 0.0, (at - start) / jnp.where(start == end, 1.0, end - start))
    where = a[along] + part * (b[along] - a[along])
    return (between & (where >= low[number, along]) & (where <= high[number, along])).any()
