"""Small changes of levels, as evolution makes them, and the crossover of two."""

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
    """Leaves the level as it is."""
    del key
    return level


def flip_wall(key: Key, level: Level) -> Level:
    """A wall where there was none, or none where there was one; never on the start or a tile."""
    return _set_cell(level, _sample_cell(key, ~_occupancy_mask(level)), lambda grid: ~grid)


def add_wall(key: Key, level: Level) -> Level:
    """A wall on a free cell; the same level where there is no such cell."""
    return _set_cell(level, _sample_cell(key, ~_occupancy_mask(level) & ~level.grid), jnp.ones_like)


def remove_wall(key: Key, level: Level) -> Level:
    """One wall less; the same level where there is none."""
    return _set_cell(level, _sample_cell(key, level.grid), jnp.zeros_like)


def move_goal(key: Key, level: Level) -> Level:
    """The goal on another free cell, where there is one."""
    cell = _sample_cell(key, ~_occupancy_mask(level) & ~level.grid)
    return replace(level, goal=_cell_position(cell, level.goal))


def move_agent(key: Key, level: Level) -> Level:
    """The start on another free cell, where there is one."""
    cell = _sample_cell(key, ~_occupancy_mask(level) & ~level.grid)
    return replace(level, agent=_cell_position(cell, level.agent))


EDITS: tuple[Edit, ...] = (keep_unchanged, flip_wall, add_wall, remove_wall, move_goal, move_agent)


def mutate(key: Key, level: Level, num_edits: int, edits: Sequence[Edit] = EDITS) -> Level:
    """num_edits edits, one after the other, each drawn uniformly."""

    def apply_edit(level: Level, key: Key) -> tuple[Level, None]:
        key_which, key_edit = jax.random.split(key)
        return jax.lax.switch(jax.random.randint(key_which, (), 0, len(edits)), edits, key_edit, level), None

    return jax.lax.scan(apply_edit, level, jax.random.split(key, num_edits))[0]


def crossover(key: Key, a: Level, b: Level) -> Level:
    """Walls of either at every cell, start and goal together those of either, on cells that become free."""
    key_walls, key_start = jax.random.split(key)
    grid = jnp.where(jax.random.bernoulli(key_walls, shape=a.grid.shape), a.grid, b.grid)
    first = jax.random.bernoulli(key_start)
    child = jax.tree.map(lambda x, y: jnp.where(first, x, y), a, b)
    return replace(child, walls=pack(grid & ~_occupancy_mask(child)))


def decode(genome: Float[Array, " size"], height: int, width: int) -> Level:
    """The level of a vector of 3 height * width + 4 numbers: walls where positive, then by the highest of each part the
    goal, the start on another cell, and the direction.
    """
    cells = height * width
    walls, goals, starts, directions = jnp.split(genome, [cells, 2 * cells, 3 * cells])
    goal = goals.argmax()
    start = jnp.where(jnp.arange(cells) == goal, -jnp.inf, starts).argmax()
    grid = (walls > 0).at[goal].set(False).at[start].set(False).reshape(height, width)
    places = [jnp.stack([cell % width, cell // width]).astype(jnp.int32) for cell in (start, goal)]
    return levels.create_level(grid, (places[0], directions.argmax().astype(jnp.int32)), places[1])


def _occupancy_mask(level: Level) -> Bool[Array, "height width"]:
    """The cells of the start, the goal, the distractor and the clue."""
    y, x = map(jnp.asarray, np.mgrid[0 : level.height, 0 : level.width])
    return is_at(level.agent, x, y) | is_at(level.goal, x, y) | is_at(level.distractor, x, y) | is_at(level.clue, x, y)


def _sample_cell(key: Key, allowed: Bool[Array, "height width"]) -> Bool[Array, "height width"]:
    """One of the allowed cells, uniformly; none where none is allowed."""
    noise = jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1.0)
    return allowed & (jnp.arange(allowed.size).reshape(allowed.shape) == noise.argmax())


def _set_cell(level: Level, cell: Bool[Array, "height width"], new: Callable[[Array], Array]) -> Level:
    return replace(level, walls=pack(jnp.where(cell, new(level.grid), level.grid)))


def _cell_position(cell: Bool[Array, "height width"], otherwise: Int[Array, "2"]) -> Int[Array, "2"]:
    """(x, y) of the one cell that is set."""
    y, x = jnp.unravel_index(cell.argmax(), cell.shape)
    return jnp.where(cell.any(), jnp.stack([x, y]).astype(jnp.int32), otherwise)
