"""Editor of mazes: an environment in which a teacher builds a level."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int

from evorl.envs.maze import view
from evorl.envs.maze.generators import sample_direction
from evorl.envs.maze.levels import ABSENT, Level, LevelSource, create_level, pack
from evorl.errors import require, require_int
from evorl.spaces import Box, Dict, Discrete
from evorl.types import Key, TimeStep


@struct.dataclass
class MazeEditorState:
    level: Level  # start and goal are ABSENT until they are placed
    num_walls: Int[Array, ""]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class MazeEditor:
    """Environment in which a teacher builds a maze level, one cell per step.

    An action is a cell. The first `num_walls` actions place walls, some of which may be on the same cell. The
    next action places the goal, and the one after that the start. The goal and the start replace a wall on
    their cell. A start on the cell of the goal moves to another cell, sampled uniformly. The direction of the
    agent is sampled at reset. All rewards are 0; the curriculum, which scores the level, adds the score to
    the last one.

    The observation is the whole level as an image, encoded as in `Maze` with `full_view` and divided by 10;
    the step; and new uniform random numbers at each step.

    Args:
        levels: Source of levels, which defines the size.
        num_walls: Number of walls to place.
        num_random: Number of random numbers in the observation.
        first_sets_number: Whether a first, additional action sets the number of walls, to num_walls * action
            / number of cells. The steps that are left after the start has been placed do nothing.

    Raises:
        OptionError: If the level has fewer than two cells.

    Sources: Dennis et al. 2020, arXiv:2012.02096; Jiang et al. 2023, arXiv:2311.12716 (order and number of
    actions).
    """

    levels: LevelSource
    num_walls: int = 60
    num_random: int = 50
    first_sets_number: bool = False

    default_params = None
    fresh_reset = True

    def __post_init__(self) -> None:
        height, width = self._grid_size
        require(
            height * width >= 2, "levels", f"{height} x {width}", "must have at least two cells, for goal and start"
        )
        require_int("num_walls", self.num_walls, 0)
        require_int("num_random", self.num_random, 0)

    @property
    def max_episode_steps(self) -> int:
        return self.num_walls + 2 + self.first_sets_number

    @property
    def observation_space(self) -> Dict:
        parts = {
            "image": view.make_image_space(self.levels.height + 2, self.levels.width + 2, normalize=True),
            "step": Discrete(self.max_episode_steps + 1),
        }
        return Dict(parts | {"random": Box(0.0, 1.0, (self.num_random,))} if self.num_random else parts)

    @property
    def action_space(self) -> Discrete:
        height, width = self._grid_size
        return Discrete(height * width)

    def reset(self, key: Key, params: Any) -> tuple[MazeEditorState, dict[str, Array]]:
        del params
        key_direction, key_seen = jax.random.split(key)
        nowhere = (ABSENT, ABSENT)
        level = create_level(jnp.zeros(self._grid_size, bool), (nowhere, sample_direction(key_direction)), nowhere)
        state = MazeEditorState(level, jnp.int32(self.num_walls), jnp.int32(0))
        return state, self.observe(key_seen, state)

    def step(
        self, key: Key, env_state: MazeEditorState, action: Int[Array, ""], params: Any
    ) -> tuple[MazeEditorState, TimeStep]:
        del params
        key_start, key_seen = jax.random.split(key)
        number, placed = env_state.num_walls, env_state.steps
        if self.first_sets_number:
            of_all = jnp.round(self.num_walls * action / self.action_space.n).astype(jnp.int32)
            number, placed = jnp.where(placed == 0, of_all, number), placed - 1
        level = self._place_object(key_start, env_state.level, action, placed, number)
        after = MazeEditorState(level, number, env_state.steps + 1)
        over = after.steps >= self.max_episode_steps
        return after, TimeStep(self.observe(key_seen, after), jnp.float32(0), over, jnp.bool_(False))

    def get_level(self, env_state: MazeEditorState) -> Level:
        return env_state.level

    def observe(self, key: Key, state: MazeEditorState) -> dict[str, Array]:
        """Return the observation of a state: the level so far, the step, and new random numbers.

        Args:
            key: Random key of the random numbers.
            state: State to observe.
        """
        level = state.level
        cells = view.encode_full_view(level, level.agent, level.direction, *self._grid_size)
        seen = {"image": view.to_image(cells, normalize=True), "step": state.steps}
        return seen | {"random": jax.random.uniform(key, (self.num_random,))} if self.num_random else seen

    def _place_object(
        self, key: Key, level: Level, cell: Int[Array, ""], placed: Int[Array, ""], number: Int[Array, ""]
    ) -> Level:
        """Place the next object on a cell: one of `number` walls, then the goal, then the start."""
        width, is_goal, is_start = level.width, placed == number, placed == number + 1
        goal = level.goal[1] * width + level.goal[0]
        other = (goal + jax.random.randint(key, (), 1, self.action_space.n)) % self.action_space.n
        cell = jnp.where(is_start & (cell == goal), other, cell)
        here = (np.arange(self.action_space.n) == cell).reshape(self._grid_size)
        is_wall = (placed >= 0) & (placed < number)
        grid = jnp.where(here & (is_wall | is_goal | is_start), is_wall, level.grid)
        at = jnp.stack([cell % width, cell // width]).astype(jnp.int32)
        agent, goal = jnp.where(is_start, at, level.agent), jnp.where(is_goal, at, level.goal)
        return replace(level, walls=pack(grid), agent=agent, goal=goal)

    @property
    def _grid_size(self) -> tuple[int, int]:
        return self.levels.height, self.levels.width
