"""A snake that grows with what it eats."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, Int16, Shaped

from evorl.envs.arcade import screen
from evorl.errors import require, require_int
from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep

EMPTY, FOOD, WALL = 0, -1, -2  # cells; of a snake's, more than 0, for how many steps it will be there
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)], np.int32)  # up, down, left, right
Cells = Int16[Array, "rows columns"]


@struct.dataclass
class SnakeState:
    cells: Cells  # with walls as wide as it sees
    head: Int[Array, " 2"]  # row and column
    back: Int[Array, " 2"]  # from the head to the cell before it; (0, 0) where it has one cell alone
    length: Int[Array, ""]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Snake:
    """Reward 0.1 for food, which makes the snake longer and comes again elsewhere; -1 for a wall or itself: the end.

    PufferLib's rules for one snake: it may not turn back, but goes on then; its tail is in its way until it has left.
    Sees food, walls and itself, each a 0 or 1, in a square of 2 vision + 1 cells around its head; or with `image` a
    screen.
    """

    height: int = 16
    width: int = 16
    food: int = 4
    vision: int = 5
    max_episode_steps: int = 1000
    image: bool = False

    render_fps = 10.0
    default_params = None
    fresh_reset = False
    action_space = Discrete(len(MOVES))
    action_meanings = ("up", "down", "left", "right")

    def __post_init__(self) -> None:
        require(min(self.height, self.width) >= 2, "height", (self.height, self.width), "must be at least 2 x 2")
        require(0 < self.food < self.height * self.width, "food", self.food, "must be at least 1, and leave a cell")
        require_int("vision", self.vision)

    @property
    def observation_space(self) -> Box:
        side = 2 * self.vision + 1
        return (
            screen.make_pixel_space(self.height + 2, self.width + 2)
            if self.image
            else Box(0, 1, (side, side, 3), "uint8")
        )

    def chance(self, key: Key) -> Float[Array, ""]:
        """Where the next food comes, from 0 for the first of the free cells to 1."""
        return jax.random.uniform(key)

    def reset(self, key: Key, params: Any) -> tuple[SnakeState, Array]:
        del params
        cells = jnp.zeros((self.height, self.width), jnp.int16)
        cells = jnp.pad(cells, self.vision, constant_values=WALL)
        parts = jax.random.uniform(key, (1 + self.food,))
        head = find_free_cell(cells, parts[0])
        cells = set_cell(cells, head, 1)
        for part in parts[1:]:
            cells = set_cell(cells, find_free_cell(cells, part), FOOD)
        state = SnakeState(cells, head, jnp.zeros(2, jnp.int32), jnp.int32(1), jnp.int32(0))
        return state, self.observe(state)

    def step(self, key: Key, env_state: SnakeState, action: Int[Array, ""], params: Any) -> tuple[SnakeState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(
        self, env_state: SnakeState, action: Int[Array, ""], chance: Float[Array, ""]
    ) -> tuple[SnakeState, TimeStep]:
        """A step without chance, which is given."""
        s = env_state
        move = jnp.stack(
            [(action == 1).astype(jnp.int32) - (action == 0), (action == 3).astype(jnp.int32) - (action == 2)]
        )
        move = jnp.where((move == s.back).all(), -move, move)
        head = s.head + move
        tile = jnp.where(mask_cell(s.cells, head), s.cells, 0).sum(dtype=jnp.int16)
        died, eats = (tile == WALL) | (tile > 0), tile == FOOD
        length = s.length + eats
        cells = jnp.where((s.cells > 0) & ~eats, s.cells - 1, s.cells)
        cells = set_cell(cells, head, length)
        cells = jnp.where(eats, set_cell(cells, find_free_cell(cells, chance), FOOD), cells)
        back = jnp.where(length > 1, -move, 0)
        steps = s.steps + 1
        kept = SnakeState(s.cells, s.head, s.back, s.length, steps)
        state = jax.tree.map(
            lambda old, new: jnp.where(died, old, new), kept, SnakeState(cells, head, back, length, steps)
        )
        reward = jnp.where(died, -1.0, jnp.where(eats, 0.1, 0.0)).astype(jnp.float32)
        late = ~died & (steps >= self.max_episode_steps)
        return state, TimeStep(self.observe(state), reward, died, late)

    def observe(self, env_state: SnakeState) -> Array:
        """The observation."""
        if self.image:
            return self.render(env_state)
        side = 2 * self.vision + 1
        near = jax.lax.dynamic_slice(env_state.cells, env_state.head - self.vision, (side, side))
        return jnp.stack([near == FOOD, near == WALL, near > 0], -1).astype(jnp.uint8)

    def render(self, env_state: SnakeState) -> screen.Picture:
        """A pixel for each cell, with a wall of one."""
        edge = self.vision - 1
        cells = env_state.cells[edge : len(env_state.cells) - edge, edge : env_state.cells.shape[1] - edge]
        rows, columns = cells.shape
        picture = screen.create_picture(rows, columns)
        for where, color in ((cells == WALL, screen.GRAY), (cells == FOOD, screen.RED), (cells > 0, screen.CYAN)):
            picture = screen.paint(picture, where, color)
        return screen.paint(picture, mask_cell(cells, env_state.head - edge), screen.WHITE)

    def render_frames(self, states: Sequence[SnakeState]) -> list[np.ndarray]:
        """Render the screens of states."""
        return screen.render_screens(self, states)


def mask_cell(cells: Shaped[Array, "rows columns"], place: Int[Array, "2"]) -> Array:
    """Which of the cells is at a place."""
    row, column = np.ogrid[: cells.shape[0], : cells.shape[1]]
    return (row == place[0]) & (column == place[1])


def set_cell(cells: Cells, place: Int[Array, "2"], value: Any) -> Cells:
    """cells with a value at a place."""
    return jnp.where(mask_cell(cells, place), jnp.int16(value), cells)


def find_free_cell(cells: Cells, part: Float[Array, ""]) -> Int[Array, "2"]:
    """The free cell that has so large a part of all free ones before it; beyond all cells where none is free."""
    free = cells == EMPTY
    of_row = free.sum(1, dtype=jnp.int32)
    before = jnp.cumsum(of_row)
    n = jnp.minimum((part * before[-1]).astype(jnp.int32), before[-1] - 1)
    row = jnp.where(before[-1] > 0, (before <= n).sum(dtype=jnp.int32), len(cells))
    in_row = (free & (np.arange(len(cells)) == row)[:, None]).sum(0, dtype=jnp.int32)
    rest = n - jnp.where(np.arange(len(cells)) == row, before - of_row, 0).sum(dtype=jnp.int32)
    return jnp.stack([row, (jnp.cumsum(in_row) <= rest).sum(dtype=jnp.int32)])
