"""Generators of levels, which sample a level from a random key and from params that may differ between runs."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import tree
from evorl.envs.maze import levels
from evorl.envs.maze.levels import Level
from evorl.envs.maze.paths import path_length
from evorl.errors import OptionError, require
from evorl.types import Key
from evorl.vector_env import UNLIMITED


@struct.dataclass
class WallCounts:
    """Range of the number of walls, both ends included."""

    fewest: Int[Array, ""] | np.int32
    most: Int[Array, ""] | np.int32


@dataclass(frozen=True)
class RandomWalls:
    """Levels with walls, start, goal and direction sampled uniformly.

    The number of walls is uniform from `fewest` to `most`. Start and goal are two different free cells.

    Args:
        height: Number of rows.
        width: Number of columns.
        fewest: Lowest number of walls.
        most: Highest number of walls.
        replacement: Whether the cells of walls are sampled with replacement; a level then has fewer walls, as
            some are on the same cell.
        solvable: Whether levels are sampled again until the goal can be reached.

    Raises:
        OptionError: If there are fewer than two cells, or the walls leave fewer than two cells free.
    """

    height: int = 13
    width: int = 13
    fewest: int = 60
    most: int = 60
    replacement: bool = True
    solvable: bool = False

    def __post_init__(self) -> None:
        cells = self.height * self.width
        require(min(self.height, self.width) >= 1 and cells >= 2, "height", self.height, "must give at least two cells")
        require(0 <= self.fewest <= self.most, "fewest", self.fewest, f"must be from 0 to most, {self.most}")
        require(self.most <= cells - 2, "most", self.most, f"must be at most {cells - 2}, to leave two free cells")

    @property
    def default_params(self) -> WallCounts:
        return WallCounts(np.int32(self.fewest), np.int32(self.most))

    def sample(self, key: Key, params: WallCounts) -> Level:
        """Sample a level; a number of walls above the field `most` is reduced to `most`."""
        if not self.solvable:
            return self._sample_level(key, params)

        def sample_candidate(i: Array, drawn: tuple[Level, Array]) -> tuple[Level, Array]:
            del drawn
            level = self._sample_level(jax.random.fold_in(key, i), params)
            return level, path_length(level) >= 0

        nothing = tree.zeros_like(jax.eval_shape(lambda: self._sample_level(key, params)))
        return tree.masked_fori_loop(
            jnp.int32(UNLIMITED), sample_candidate, (nothing, jnp.bool_(False)), lambda drawn: ~drawn[1]
        )[0]

    def _sample_level(self, key: Key, params: WallCounts) -> Level:
        key_count, key_walls, key_start = jax.random.split(key, 3)
        cells = self.height * self.width
        count = jax.random.randint(key_count, (), params.fewest, params.most + 1)
        if self.replacement:
            drawn = jax.random.randint(key_walls, (self.most,), 0, cells)
        else:
            drawn = jnp.argsort(jax.random.bits(key_walls, (cells,)))[: self.most]
        drawn = jnp.where(jnp.arange(self.most) < count, drawn, cells)
        walls = jnp.zeros(cells, bool).at[drawn].set(True, mode="drop")
        return place_start_and_goal(key_start, walls.reshape(self.height, self.width))


@dataclass(frozen=True)
class LevelTable:
    """Levels sampled uniformly from a table, which is the params, leaves [n, ...].

    Args:
        drawings: Levels of the default table, as drawings for `from_str`, all of one size.
        any_direction: Whether the direction of the agent is sampled uniformly, instead of taken from the
            level.

    Raises:
        OptionError: If there are no drawings, or their sizes differ.
    """

    drawings: tuple[str, ...]
    any_direction: bool = False

    def __post_init__(self) -> None:
        if not self.drawings:
            raise OptionError("drawings=(): must have at least one level")
        sizes = {(level.height, level.width) for level in map(levels.from_str, self.drawings)}
        require(
            len(sizes) == 1, "drawings", sorted(sizes), "all levels must have the same size; use evorl.envs.maze.pad"
        )

    @property
    def height(self) -> int:
        return len(self.drawings[0].split())

    @property
    def width(self) -> int:
        return len(self.drawings[0].split()[0])

    @property
    def default_params(self) -> Level:
        return tree.stack([levels.from_str(drawing) for drawing in self.drawings])

    def sample(self, key: Key, params: Level) -> Level:
        key_level, key_direction = jax.random.split(key)
        level = tree.index(params, jax.random.randint(key_level, (), 0, tree.leading_size(params)))
        if not self.any_direction:
            return level
        return replace(level, direction=sample_direction(key_direction))


def place_start_and_goal(key: Key, grid: Bool[Array, "height width"]) -> Level:
    """Return a level with these walls, and start, goal and direction sampled uniformly.

    The grid must have at least two free cells.
    """
    key_start, key_goal, key_direction = jax.random.split(key, 3)
    seen = jnp.cumsum(~grid.reshape(-1))
    start = jax.random.randint(key_start, (), 0, seen[-1])
    goal = jax.random.randint(key_goal, (), 0, seen[-1] - 1)
    goal = goal + (goal >= start)
    # the index of the k-th free cell, from 0, is the number of cells with seen <= k
    cells = (seen <= jnp.stack([start, goal])[:, None]).sum(-1, dtype=jnp.int32)
    at = jnp.stack([cells % grid.shape[1], cells // grid.shape[1]], axis=-1)
    return levels.create_level(grid, (at[0], sample_direction(key_direction)), at[1])


def sample_direction(key: Key) -> Int[Array, ""]:
    """Sample a direction uniformly: right, down, left or up."""
    return jax.random.randint(key, (), 0, 4, jnp.int32)
