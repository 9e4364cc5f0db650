"""Edits of levels, their composition to mutations, and a crossover of two levels."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from evorl.envs.maze import levels
from evorl.envs.maze.levels import Level, is_at, pack
from evorl.types import Key

Edit = Callable[[Key, Level], Level]


def keep_unchanged(key: Key, level: Level) -> Level:
    """Return the level unchanged."""
    del key
    return level


def flip_wall(key: Key, level: Level) -> Level:
    """Flip a random cell between wall and free, but not that of the start, the goal, the distractor or the clue."""
    return _set_cell(level, _sample_cell(key, ~_occupancy_mask(level)), lambda grid: ~grid)


def add_wall(key: Key, level: Level) -> Level:
    """Add a wall on a random free cell, if there is one."""
    return _set_cell(level, _sample_cell(key, ~_occupancy_mask(level) & ~level.grid), jnp.ones_like)


def remove_wall(key: Key, level: Level) -> Level:
    """Remove a random wall, if there is one."""
    return _set_cell(level, _sample_cell(key, level.grid), jnp.zeros_like)


def move_goal(key: Key, level: Level) -> Level:
    """Move the goal to a random free cell, if there is one."""
    cell = _sample_cell(key, ~_occupancy_mask(level) & ~level.grid)
    return replace(level, goal=_cell_position(cell, level.goal))


def move_agent(key: Key, level: Level) -> Level:
    """Move the start to a random free cell, if there is one."""
    cell = _sample_cell(key, ~_occupancy_mask(level) & ~level.grid)
    return replace(level, agent=_cell_position(cell, level.agent))


EDITS: tuple[Edit, ...] = (keep_unchanged, flip_wall, add_wall, remove_wall, move_goal, move_agent)


def mutate(key: Key, level: Level, num_edits: int, edits: Sequence[Edit] = EDITS) -> Level:
    """Apply `num_edits` edits sequentially, each sampled uniformly from `edits`."""

    def apply_edit(level: Level, key: Key) -> tuple[Level, None]:
        key_which, key_edit = jax.random.split(key)
        return jax.lax.switch(jax.random.randint(key_which, (), 0, len(edits)), edits, key_edit, level), None

    return jax.lax.scan(apply_edit, level, jax.random.split(key, num_edits))[0]


def crossover(key: Key, a: Level, b: Level) -> Level:
    """Return a child whose walls are from either parent at each cell, with start and goal from one of the parents.

    The cells of the start and the goal become free.
    """
    key_walls, key_start = jax.random.split(key)
    grid = jnp.where(jax.random.bernoulli(key_walls, shape=a.grid.shape), a.grid, b.grid)
    first = jax.random.bernoulli(key_start)
    child = jax.tree.map(lambda x, y: jnp.where(first, x, y), a, b)
    return replace(child, walls=pack(grid & ~_occupancy_mask(child)))


def decode(genome: Float[Array, " size"], height: int, width: int) -> Level:
    """Decode a vector of 3 * height * width + 4 numbers into a level.

    Its parts are one number per cell for walls, for the goal and for the start, and one per direction. A cell
    is a wall if its number is positive. The goal, the start on another cell, and the direction are the
    largest entries of their parts.
    """
    cells = height * width
    walls, goals, starts, directions = jnp.split(genome, [cells, 2 * cells, 3 * cells])
    goal = goals.argmax()
    start = jnp.where(jnp.arange(cells) == goal, -jnp.inf, starts).argmax()
    grid = (walls > 0).at[goal].set(False).at[start].set(False).reshape(height, width)
    places = [jnp.stack([cell % width, cell // width]).astype(jnp.int32) for cell in (start, goal)]
    return levels.create_level(grid, (places[0], directions.argmax().astype(jnp.int32)), places[1])


def _occupancy_mask(level: Level) -> Bool[Array, "height width"]:
    """Return a mask of the cells of the start, the goal, the distractor and the clue."""
    y, x = map(jnp.asarray, np.mgrid[0 : level.height, 0 : level.width])
    return is_at(level.agent, x, y) | is_at(level.goal, x, y) | is_at(level.distractor, x, y) | is_at(level.clue, x, y)


def _sample_cell(key: Key, allowed: Bool[Array, "height width"]) -> Bool[Array, "height width"]:
    """Return a mask of one allowed cell, sampled uniformly, or of none if no cell is allowed."""
    noise = jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1.0)
    return allowed & (jnp.arange(allowed.size).reshape(allowed.shape) == noise.argmax())


def _set_cell(level: Level, cell: Bool[Array, "height width"], new: Callable[[Array], Array]) -> Level:
    return replace(level, walls=pack(jnp.where(cell, new(level.grid), level.grid)))


def _cell_position(cell: Bool[Array, "height width"], otherwise: Int[Array, "2"]) -> Int[Array, "2"]:
    """Return (x, y) of the one cell that is set in a mask, or `otherwise` if there is none."""
    y, x = jnp.unravel_index(cell.argmax(), cell.shape)
    return jnp.where(cell.any(), jnp.stack([x, y]).astype(jnp.int32), otherwise)
