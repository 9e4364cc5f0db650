"""The maze: MiniGrid's walls, goal and egocentric view (Chevalier-Boisvert et al. 2023), as arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl.envs.maze.generators import RandomWalls
from evorl.envs.maze.level import GREEN, HEADINGS, RED, Level, at, blocked
from evorl.envs.maze.paths import level_metrics
from evorl.envs.spaces import Box, Dict, Discrete
from evorl.errors import require
from evorl.types import Key, Metrics, TimeStep

LEFT, RIGHT, FORWARD = 0, 1, 2  # the actions that do something; 3 to 6 (pick up, drop, toggle, done) do nothing
UNSEEN, EMPTY, WALL, GOAL, AGENT = 0, 1, 2, 8, 10  # MiniGrid's numbers of objects
GREY = 5


@runtime_checkable
class Levels(Protocol):
    """Where levels come from: one size, and a draw of a level from params."""

    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def default_params(self) -> Any: ...
    def sample(self, key: Key, params: Any) -> Level: ...


@struct.dataclass
class MazeState:
    level: Level
    position: Any  # [2] int32 (x, y)
    direction: Any  # [] int32
    steps: Any  # [] int32


@dataclass(frozen=True)
class Maze:
    """Find the goal: reward 1 - time_penalty * (steps / max_episode_steps) on reaching it, which ends the episode.

    Sees view_size x view_size cells ahead, the agent at the bottom centre looking up, as [row, column, (object, colour,
    state)], or, with full_view, the whole maze with its border; and the direction. Beyond walls one sees, unless
    see_through_walls is off. Actions 0 to 2 are left, right, forward; the others of MiniGrid's seven do nothing.
    """

    levels: Levels = field(default_factory=RandomWalls)
    view_size: int = 5
    max_episode_steps: int = 250
    time_penalty: float = 0.9
    num_actions: int = 7
    full_view: bool = False
    see_agent: bool = False
    see_through_walls: bool = True
    normalize: bool = True  # divided by 10, as float32; otherwise uint8

    fresh_reset = True

    def __post_init__(self) -> None:
        odd = self.view_size in range(3, 32, 2)
        require(odd, "view_size", self.view_size, "must be odd, from 3 to 31")
        require(self.max_episode_steps >= 1, "max_episode_steps", self.max_episode_steps, "must be at least 1")
        require(self.num_actions in (3, 7), "num_actions", self.num_actions, "must be 3 or 7")
        require(0 <= self.time_penalty <= 1, "time_penalty", self.time_penalty, "must be from 0 to 1")

    @property
    def default_params(self) -> Any:
        return self.levels.default_params

    @property
    def observation_space(self) -> Dict:
        shape = (self.levels.height + 2, self.levels.width + 2) if self.full_view else (self.view_size, self.view_size)
        image = Box(0.0, 1.0, (*shape, 3)) if self.normalize else Box(0, 10, (*shape, 3), "uint8")
        return Dict({"image": image, "direction": Discrete(4)})

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.num_actions)

    def reset(self, key: Key, params: Any) -> tuple[MazeState, dict[str, Array]]:
        return self.reset_to(key, self.levels.sample(key, params))

    def reset_to(self, key: Key, level: Level) -> tuple[MazeState, dict[str, Array]]:
        """The start of an episode in a given level."""
        del key
        state = MazeState(level, level.agent, level.direction, jnp.int32(0))
        return state, self.observe(state)

    def step(self, key: Key, env_state: MazeState, action: Int[Array, ""], params: Any) -> tuple[MazeState, TimeStep]:
        del key, params
        level, direction = env_state.level, env_state.direction
        turn = jnp.where(action == RIGHT, 1, jnp.where(action == LEFT, 3, 0))
        ahead = env_state.position + jnp.asarray(HEADINGS)[direction]
        moves = (action == FORWARD) & ~blocked(level, ahead[0], ahead[1])
        position = jnp.where(moves, ahead, env_state.position)
        after = MazeState(level, position, (direction + turn) % 4, env_state.steps + 1)
        reached = moves & at(level.goal, *position)
        terminated = reached | (moves & at(level.distractor, *position))
        late = after.steps >= self.max_episode_steps
        reward = jnp.where(reached, 1 - self.time_penalty * after.steps / self.max_episode_steps, 0.0)
        return after, TimeStep(self.observe(after), reward.astype(jnp.float32), terminated, late & ~terminated)

    def observe(self, state: MazeState) -> dict[str, Array]:
        image = self._whole(state) if self.full_view else self._view(state)
        image = image / jnp.float32(10) if self.normalize else image.astype(jnp.uint8)
        return {"image": image, "direction": state.direction}

    def describe(self, state: MazeState) -> Metrics:
        """Metrics of the level that is being played."""
        return level_metrics(state.level)

    def _view(self, state: MazeState) -> Int[Array, "view view 3"]:
        size = self.view_size
        to_x, to_y = (jnp.asarray(offsets)[state.direction] for offsets in _offsets(size))
        x, y = state.position[0] + to_x, state.position[1] + to_y
        seen = _encode(state.level, x, y)
        if not self.see_through_walls:
            seen = jnp.where(_visible(seen[..., 0] == WALL)[..., None], seen, UNSEEN)
        own = jnp.array([AGENT, RED, 0], jnp.int32).at[2].set(state.direction) if self.see_agent else (EMPTY, 0, 0)
        return seen.at[size - 1, size // 2].set(jnp.asarray(own, jnp.int32))

    def _whole(self, state: MazeState) -> Int[Array, "rows columns 3"]:
        y, x = np.mgrid[-1 : self.levels.height + 1, -1 : self.levels.width + 1]
        seen = _encode(state.level, jnp.asarray(x), jnp.asarray(y))
        own = jnp.stack([jnp.int32(AGENT), jnp.int32(RED), state.direction])
        return seen.at[state.position[1] + 1, state.position[0] + 1].set(own)


def _offsets(size: int) -> np.ndarray:
    """What to add to the agent's x and y for each cell of its view: [2, direction, row, column]."""
    ahead, aside = np.mgrid[size - 1 : -1 : -1, -(size // 2) : size // 2 + 1]
    rightwards = np.roll(HEADINGS, -1, axis=0)  # what is at the right hand of each heading
    offsets = HEADINGS[:, :, None, None] * ahead + rightwards[:, :, None, None] * aside
    return offsets.swapaxes(0, 1).astype(np.int32)


def _encode(level: Level, x: Int[Array, "rows columns"], y: Int[Array, "rows columns"]) -> Int[Array, "rows columns 3"]:
    """Cells as MiniGrid's (object, colour, state)."""
    wall, goal, distractor = blocked(level, x, y), at(level.goal, x, y), at(level.distractor, x, y)
    clue = at(level.clue, x, y)
    color = jnp.where(distractor, GREEN + RED - level.color, level.color)
    tile = goal | distractor | clue
    kind = jnp.where(tile, GOAL, jnp.where(wall, WALL, EMPTY))
    return jnp.stack([kind, jnp.where(tile, color, jnp.where(wall, GREY, 0)), jnp.zeros_like(kind)], axis=-1)


def _visible(wall: Bool[Array, "size size"]) -> Bool[Array, "size size"]:
    """What MiniGrid sees from the bottom centre: light goes up and sideways from cells that are no walls.

    A row, as bits, is swept to the right and then to the left; each lit free cell lights the three cells before it.
    """
    size = wall.shape[0]
    every = jnp.uint32(2**size - 1)
    columns = jnp.arange(size, dtype=jnp.uint32)
    walls = (wall.astype(jnp.uint32) << columns).sum(-1, dtype=jnp.uint32)

    def sweep(lit: Array, wall: Array) -> tuple[Array, Array]:
        free = every & ~wall
        rightwards, last = _run(lit & free, free, jnp.left_shift), every >> 1
        lit = lit | rightwards | (rightwards << 1) & every
        above = (rightwards & last) | (rightwards & last) << 1
        leftwards, first = _run(lit & free, free, jnp.right_shift), every & ~jnp.uint32(1)
        lit = lit | leftwards | leftwards >> 1
        return above | (leftwards & first) | (leftwards & first) >> 1, lit

    _, lit = jax.lax.scan(sweep, jnp.uint32(1 << size // 2), walls, reverse=True)
    return ((lit[:, None] >> columns) & 1).astype(bool)


def _run(cells: Array, free: Array, shift: Callable[[Array, Array], Array]) -> Array:
    """Bits and all free ones behind them in one direction without a gap, in views of up to 32."""
    for distance in (1, 2, 4, 8, 16):
        cells = cells | free & shift(cells, jnp.uint32(distance))
        free = free & shift(free, jnp.uint32(distance))
    return cells
