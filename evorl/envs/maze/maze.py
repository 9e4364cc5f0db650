"""The maze environment, with MiniGrid's walls, goal and egocentric view (Chevalier-Boisvert et al. 2023), as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl.envs.maze import view
from evorl.envs.maze.draw import render_level
from evorl.envs.maze.editor import MazeEditor
from evorl.envs.maze.edits import crossover, decode, flip_wall, keep_unchanged, move_goal, mutate
from evorl.envs.maze.generators import RandomWalls
from evorl.envs.maze.levels import Level, LevelSource, equal, is_at, is_wall
from evorl.envs.maze.paths import level_metrics, optimal_return
from evorl.errors import require, require_int
from evorl.spaces import Dict, Discrete
from evorl.types import EditorEnv, Key, Metrics, TimeStep

LEFT, RIGHT, FORWARD = 0, 1, 2  # actions with an effect; 3 to 6 (pick up, drop, toggle, done) have none


@struct.dataclass
class MazeState:
    level: Level
    position: Int[Array, " 2"]  # (x, y)
    direction: Int[Array, ""]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Maze:
    """Maze in which the agent has to find the goal, with MiniGrid's walls and egocentric view.

    Reaching the goal terminates the episode with reward 1 - time_penalty * steps / max_episode_steps; a level
    may have its own limit of steps. Actions 0 to 2 are turn left, turn right and forward. The others of
    MiniGrid's seven actions do nothing.

    The observation is an image of the view_size x view_size cells ahead, with the agent at the bottom center
    and looking up, [row, column, (object, color, state)]; and the direction. With `full_view`, the image is
    the whole maze with its border.

    Args:
        levels: Source of levels.
        view_size: Side of the view, in cells, odd, from 3 to 31.
        max_episode_steps: Steps after which an episode is truncated, unless the level has its own limit.
        time_penalty: Decrease of the reward if the goal is reached only at the last step, from 0 to 1.
        num_actions: Number of actions, 3 or 7.
        full_view: Whether the image shows the whole maze instead of the cells ahead.
        see_agent: Whether the view of the cells ahead shows the agent itself.
        see_through_walls: Whether the view of the cells ahead shows cells behind walls.
        normalize: Whether images are divided by 10, as float32; otherwise, they are uint8.
        editor_num_random: Number of random numbers that a teacher observes in the editor of levels.
        editor_first_sets_number: Whether the first action of a teacher sets the number of walls.

    Raises:
        OptionError: If a value is not allowed.

    Source: Chevalier-Boisvert et al. 2023.
    """

    levels: LevelSource = field(default_factory=RandomWalls)
    view_size: int = 5
    max_episode_steps: int = 250
    time_penalty: float = 0.9
    num_actions: int = 7
    full_view: bool = False
    see_agent: bool = False
    see_through_walls: bool = True
    normalize: bool = True
    editor_num_random: int = 50
    editor_first_sets_number: bool = False

    fresh_reset = True
    render_fps = 10.0

    def __post_init__(self) -> None:
        odd = self.view_size in range(3, 32, 2)
        require(odd, "view_size", self.view_size, "must be odd, from 3 to 31")
        require_int("max_episode_steps", self.max_episode_steps)
        require(self.num_actions in (3, 7), "num_actions", self.num_actions, "must be 3 or 7")
        require(0 <= self.time_penalty <= 1, "time_penalty", self.time_penalty, "must be from 0 to 1")

    @property
    def default_params(self) -> Any:
        return self.levels.default_params

    @property
    def observation_space(self) -> Dict:
        shape = (self.levels.height + 2, self.levels.width + 2) if self.full_view else (self.view_size, self.view_size)
        return Dict({"image": view.make_image_space(*shape, self.normalize), "direction": Discrete(4)})

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.num_actions)

    def reset(self, key: Key, params: Any) -> tuple[MazeState, dict[str, Array]]:
        return self.reset_to_level(key, self.sample_level(key, params))

    def sample_level(self, key: Key, params: Any) -> Level:
        return self.levels.sample(key, params)

    def reset_to_level(self, key: Key, level: Level) -> tuple[MazeState, dict[str, Array]]:
        """Start an episode on a given level, in its initial position and direction for every key."""
        del key
        state = MazeState(level, level.agent, level.direction, jnp.int32(0))
        return state, self.observe(state)

    def step(self, key: Key, env_state: MazeState, action: Int[Array, ""], params: Any) -> tuple[MazeState, TimeStep]:
        del key, params
        level, direction = env_state.level, env_state.direction
        turn = jnp.where(action == RIGHT, 1, jnp.where(action == LEFT, 3, 0))
        ahead = env_state.position + jnp.stack(view.direction_vector(direction))
        moves = (action == FORWARD) & ~is_wall(level, ahead[0], ahead[1])
        position = jnp.where(moves, ahead, env_state.position)
        after = MazeState(level, position, (direction + turn) % 4, env_state.steps + 1)
        reached = moves & is_at(level.goal, *position)
        terminated = reached | (moves & is_at(level.distractor, *position))
        limit = self._step_limit(level)
        late = after.steps >= limit
        reward = jnp.where(reached, 1 - self.time_penalty * after.steps / limit, 0.0)
        return after, TimeStep(self.observe(after), reward.astype(jnp.float32), terminated, late & ~terminated)

    def get_level(self, env_state: MazeState) -> Level:
        return env_state.level

    def is_same_level(self, a: Level, b: Level) -> Bool[Array, ""]:
        return equal(a, b)

    def mutate_level(self, key: Key, level: Level, num_edits: int) -> Level:
        """Apply `num_edits` random edits, each of which does nothing, flips a wall, or moves the goal.

        Source: Parker-Holder et al. 2022, arXiv:2203.01302.
        """
        return mutate(key, level, num_edits, (keep_unchanged, flip_wall, move_goal))

    def crossover_levels(self, key: Key, a: Level, b: Level) -> Level:
        return crossover(key, a, b)

    @property
    def genome_size(self) -> int:
        """Return the size of a genome: three numbers per cell (wall, goal and start), and one per direction."""
        return 3 * self.levels.height * self.levels.width + 4

    def level_from_genome(self, genome: Float[Array, " size"]) -> Level:
        """Decode the genome: positive entries are walls; the largest ones are the goal, the start and the direction."""
        return decode(genome, self.levels.height, self.levels.width)

    def optimal_return(self, level: Level) -> Float[Array, ""]:
        return optimal_return(level, self._step_limit(level), self.time_penalty)

    def is_solved(self, episode_return: Float[Array, "..."]) -> Bool[Array, "..."]:
        """Return whether the goal was reached, except at the last step if time_penalty leaves no reward there."""
        return episode_return > 0

    def make_editor(self) -> EditorEnv:
        """Return an editor that places as many walls as RandomWalls places at most, or 60 for other sources."""
        most = self.levels.most if isinstance(self.levels, RandomWalls) else MazeEditor.num_walls
        return MazeEditor(self.levels, most, self.editor_num_random, self.editor_first_sets_number)

    def observe(self, state: MazeState) -> dict[str, Array]:
        """Return the observation of a state: the image of the cells, and the direction.

        Args:
            state: State to observe.
        """
        agent = state.level, state.position, state.direction
        if self.full_view:
            cells = view.encode_full_view(*agent, self.levels.height, self.levels.width)
        else:
            cells = view.encode_view(*agent, self.view_size, self.see_through_walls, self.see_agent)
        return {"image": view.to_image(cells, self.normalize), "direction": state.direction}

    def state_metrics(self, state: MazeState) -> Metrics:
        """Return the metrics of the current level."""
        return level_metrics(state.level)

    def render_frames(self, states: Sequence[MazeState]) -> list[np.ndarray]:
        """Render states: the levels with their agents.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [rows, columns, 3].
        """
        return [render_level(state.level, state.position, state.direction) for state in states]

    def _step_limit(self, level: Level) -> Any:
        return self.max_episode_steps if level.step_limit is None else level.step_limit
