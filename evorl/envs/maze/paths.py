"""Exact shortest paths by flood fill, in which a word of bits holds up to 32 cells of a row."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from evorl import tree
from evorl.envs.maze.levels import HEADINGS, WORD_BITS, Level, pack, unpack
from evorl.types import Metrics

CellBits = UInt32[Array, "height words"]
UNREACHABLE = -1


def path_length(level: Level) -> Int[Array, ""]:
    """Return the number of moves from the start to the goal, without turns, or -1 if there is no path."""
    free, goal = _free_cells(level), _cell_bits(level, level.goal)

    def spread(cells: CellBits) -> CellBits:
        return cells | (_neighbours(cells) & free)

    return _flood(_cell_bits(level, level.agent), spread, lambda cells: cells & goal)


def count_min_actions(level: Level) -> Int[Array, ""]:
    """Return the minimum number of actions, turns and moves, from the start to the goal, or -1 if there is no path."""
    free, goal = _free_cells(level), _cell_bits(level, level.goal)
    headings = jnp.arange(4)
    start = jnp.where((headings == level.direction)[:, None, None], _cell_bits(level, level.agent), jnp.uint32(0))

    def spread_states(cells: UInt32[Array, "4 height words"]) -> UInt32[Array, "4 height words"]:
        moved = jnp.stack([_shift(cells[i], *map(int, HEADINGS[i])) for i in range(4)])
        return cells | (moved & free) | jnp.roll(cells, 1, axis=0) | jnp.roll(cells, -1, axis=0)

    return _flood(start, spread_states, lambda cells: cells & goal)


def optimal_return(level: Level, max_episode_steps: Any = 250, time_penalty: float = 0.9) -> Float[Array, ""]:
    """Return the highest return of an episode of Maze on this level."""
    steps = count_min_actions(level)
    reachable = (steps != UNREACHABLE) & (steps <= max_episode_steps)
    return jnp.where(reachable, 1 - time_penalty * steps / max_episode_steps, 0.0)


def goal_distances(level: Level) -> Int[Array, "height width"]:
    """Return the number of moves from each cell to the goal, or -1 if there is no path."""
    free = _free_cells(level)

    def spread(
        carry: tuple[CellBits, Array, Array],
    ) -> tuple[CellBits, Array, Array]:
        cells, steps, _ = carry
        after = cells | (_neighbours(cells) & free)
        return after, steps + ~unpack(after, level.width), (after != cells).any()  # counts until reached

    start = _cell_bits(level, level.goal)
    carry = start, (~unpack(start, level.width)).astype(jnp.int32), jnp.bool_(True)
    cells, steps, _ = jax.lax.while_loop(lambda carry: tree.any_unbatched(carry[2]), spread, carry)
    return jnp.where(unpack(cells, level.width), steps, UNREACHABLE)


def level_metrics(level: Level) -> Metrics:
    """Return the number of walls, whether there is a path to the goal, and its length, 0 if there is none."""
    length = path_length(level)
    solvable = length != UNREACHABLE
    walls = jax.lax.population_count(level.walls).sum()
    return {
        "walls": walls.astype(jnp.float32),
        "solvable": solvable.astype(jnp.float32),
        "path_length": jnp.where(solvable, length, 0).astype(jnp.float32),
    }


def _flood(
    start: UInt32[Array, "..."],
    spread: Callable[[UInt32[Array, "..."]], UInt32[Array, "..."]],
    reached: Callable[[UInt32[Array, "..."]], UInt32[Array, "..."]],
) -> Int[Array, ""]:
    """Return how often `start` must spread until `reached` is nonzero, or -1 if it stops growing before."""

    def step(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        cells, steps, found, _ = carry
        after = spread(cells)
        now = (reached(after) != 0).any()
        return after, steps + ~found, found | now, ~(found | now) & (after != cells).any()

    found = (reached(start) != 0).any()
    carry = start, jnp.int32(0), found, ~found
    _, steps, found, _ = jax.lax.while_loop(lambda carry: tree.any_unbatched(carry[3]), step, carry)
    return jnp.where(found, steps, UNREACHABLE)


def _free_cells(level: Level) -> CellBits:
    """Return the cells that a path may use, which exclude the distractor."""
    inside = pack(jnp.ones((level.height, level.width), bool))
    return inside & ~level.walls & ~_cell_bits(level, level.distractor)


def _cell_bits(level: Level, cell: Int[Array, "2"]) -> CellBits:
    """Return the bits of one cell, or zeros if it is absent."""
    x, y = cell[0], cell[1]
    words = level.walls.shape[-1]
    row, word = np.arange(level.height)[:, None], np.arange(words)
    here = (row == y) & (word == x // WORD_BITS)
    return jnp.where(here, jnp.uint32(1) << (x % WORD_BITS).astype(jnp.uint32), jnp.uint32(0))


def _neighbours(cells: CellBits) -> CellBits:
    each = [_shift(cells, *map(int, heading)) for heading in HEADINGS]
    return each[0] | each[1] | each[2] | each[3]


def _shift(cells: CellBits, x: int, y: int) -> CellBits:
    """Shift cells by one in x or in y; cells that leave the words are lost."""
    if y:
        return _shift_axis(cells, y, axis=0)
    carried = _shift_axis(cells, x, axis=1)
    if x > 0:
        return (cells << 1) | (carried >> (WORD_BITS - 1))
    return (cells >> 1) | (carried << (WORD_BITS - 1))


def _shift_axis(cells: CellBits, by: int, axis: int) -> CellBits:
    """Return cells[i - by] along an axis, with zeros beyond its ends."""
    edge = jnp.zeros_like(jax.lax.slice_in_dim(cells, 0, 1, axis=axis))
    if by > 0:
        return jnp.concatenate([edge, jax.lax.slice_in_dim(cells, 0, -1, axis=axis)], axis)
    return jnp.concatenate([jax.lax.slice_in_dim(cells, 1, None, axis=axis), edge], axis)
