"""Observations of a maze, encoded as in MiniGrid."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from evorl.envs.maze.levels import GREEN, RED, Level, is_at, is_wall
from evorl.spaces import Box

# MiniGrid's object, color and state of a cell, four bits each; red is 0
UNSEEN, EMPTY, WALL, GOAL, AGENT = 0, 1, 2 + (5 << 4), 8, 10
CellCodes = Int[Array, "rows columns"]


def make_image_space(height: int, width: int, normalize: bool) -> Box:
    """Return the space of images of height x width cells."""
    shape = height, width, 3
    return Box(0.0, 1.0, shape) if normalize else Box(0, 10, shape, "uint8")


def to_image(cells: CellCodes, normalize: bool) -> Array:
    """Return the image of cells, (object, color, state), [rows, columns, 3]: float32 divided by 10, or uint8."""
    image = (cells[..., None] >> np.array([0, 4, 8])) & 15
    return image / jnp.float32(10) if normalize else image.astype(jnp.uint8)


def encode_view(
    level: Level, position: Any, direction: Any, size: int, see_through_walls: bool, see_agent: bool
) -> CellCodes:
    """Return the cells ahead of an agent, [size, size], with the agent at the bottom center and looking up.

    Args:
        level: Level, without batch axes.
        position: Position of the agent, int32 (x, y), [2].
        direction: Direction of the agent, int32 [].
        size: Number of rows and columns, odd.
        see_through_walls: Whether cells behind walls are visible.
        see_agent: Whether the agent itself is visible.
    """
    ahead, aside = np.mgrid[size - 1 : -1 : -1, -(size // 2) : size // 2 + 1]
    to_x, to_y = direction_vector(direction)  # the agent's right is (-to_y, to_x)
    x = position[0] + ahead * to_x - aside * to_y
    y = position[1] + ahead * to_y + aside * to_x
    cells = _encode_cells(level, x, y)
    if not see_through_walls:
        cells = jnp.where(_visible_mask(cells == WALL), cells, UNSEEN)
    own = AGENT + (direction << 8) if see_agent else EMPTY
    return jnp.where((ahead == 0) & (aside == 0), own, cells)


def encode_full_view(level: Level, position: Any, direction: Any, height: int, width: int) -> CellCodes:
    """Return all cells of a height x width level, with its border and the agent, [height + 2, width + 2]."""
    y, x = map(jnp.asarray, np.mgrid[-1 : height + 1, -1 : width + 1])
    return jnp.where(is_at(position, x, y), AGENT + (direction << 8), _encode_cells(level, x, y))


def direction_vector(direction: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Return one step (x, y) in a direction, as in HEADINGS, but without a gather, which XLA would not fuse."""
    return (direction == 0).astype(jnp.int32) - (direction == 2), (direction == 1).astype(jnp.int32) - (direction == 3)


def _encode_cells(level: Level, x: CellCodes, y: CellCodes) -> CellCodes:
    """Return the codes of the cells at x, y."""
    distractor = is_at(level.distractor, x, y)
    color = jnp.where(distractor, GREEN + RED - level.color, level.color)
    tile = distractor | is_at(level.goal, x, y) | is_at(level.clue, x, y)
    return jnp.where(tile, GOAL + (color << 4), jnp.where(is_wall(level, x, y), WALL, EMPTY))


def _visible_mask(wall: Bool[Array, "size size"]) -> Bool[Array, "size size"]:
    """Return a mask of the cells that are visible from the bottom center by MiniGrid's rule.

    Light spreads up and sideways from cells that are not walls. A row, as bits, is swept to the right and
    then to the left, and each lit free cell lights its neighbor in the direction of the sweep and the two
    cells above these.
    """
    size = wall.shape[0]
    every = jnp.uint32(2**size - 1)
    columns = jnp.arange(size, dtype=jnp.uint32)
    walls = (wall.astype(jnp.uint32) << columns).sum(-1, dtype=jnp.uint32)

    def propagate_light(lit: Array, wall: Array) -> tuple[Array, Array]:
        free = every & ~wall
        rightwards, last = _extend_runs(lit & free, free, jnp.left_shift), every >> 1
        lit = lit | rightwards | (rightwards << 1) & every
        above = (rightwards & last) | (rightwards & last) << 1
        leftwards, first = _extend_runs(lit & free, free, jnp.right_shift), every & ~jnp.uint32(1)
        lit = lit | leftwards | leftwards >> 1
        return above | (leftwards & first) | (leftwards & first) >> 1, lit

    _, lit = jax.lax.scan(propagate_light, jnp.uint32(1 << size // 2), walls, reverse=True)
    return ((lit[:, None] >> columns) & 1).astype(bool)


def _extend_runs(cells: Array, free: Array, shift: Callable[[Array, Array], Array]) -> Array:
    """Extend bits over all consecutive free bits in one direction, for views of up to 32 cells."""
    for distance in (1, 2, 4, 8, 16):
        cells = cells | free & shift(cells, jnp.uint32(distance))
        free = free & shift(free, jnp.uint32(distance))
    return cells
