"""Snake: a snake that grows with each food."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Int8, Shaped

from evorl.envs.arcade import screen
from evorl.errors import require, require_int
from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep

MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)], np.int32)  # up, down, left, right
EMPTY, FOOD, WALL, HEAD = 0, -1, -2, 5  # values of cells; 1 + a move is a cell of the body, whose next cell is there
Cells = Int[Array, "rows columns"]


@struct.dataclass
class SnakeState:
    cells: Int8[Array, "rows columns"]  # surrounded by walls of width `vision`
    free: Int[Array, " rows"]  # number of empty cells in each row
    head: Int[Array, " 2"]  # row and column
    tail: Int[Array, " 2"]
    length: Int[Array, ""]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Snake:
    """Snake: eat food with reward 0.1; running into a wall or itself has reward -1 and terminates the episode.

    Food makes the snake one cell longer, and new food appears elsewhere. The game follows PufferLib's rules
    for one snake: an action that would turn the snake back is replaced by going straight on, and the cell of
    the tail blocks the head until the tail has left it.

    The observation is a square of 2 * vision + 1 cells around the head, with a channel each for food, walls
    and the snake, uint8 [2 * vision + 1, 2 * vision + 1, 3].

    Args:
        height: Number of rows.
        width: Number of columns.
        food: Number of cells with food.
        vision: Number of cells that the snake sees in each direction.
        max_episode_steps: Steps after which an episode is truncated.
        image: Whether observations are pictures of the whole field, uint8 [height + 2, width + 2, 3].

    Raises:
        OptionError: If the field is smaller than 2 x 2, or the food leaves no cell free.
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
        require(
            0 < self.food < self.height * self.width, "food", self.food, "must be at least 1, and leave a free cell"
        )
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
        """Sample the uniform number that selects the free cell of the next food, shape [].

        Args:
            key: Random key of the step.
        """
        return jax.random.uniform(key)

    def reset(self, key: Key, params: Any) -> tuple[SnakeState, Array]:
        del params
        cells = jnp.zeros((self.height, self.width), jnp.int8)
        cells = jnp.pad(cells, self.vision, constant_values=WALL)
        parts = jax.random.uniform(key, (1 + self.food,))
        head = find_free_cell(cells, parts[0])
        cells = set_cell(cells, head, HEAD)
        for part in parts[1:]:
            cells = set_cell(cells, find_free_cell(cells, part), FOOD)
        state = SnakeState(cells, count_free_cells(cells), head, head, jnp.int32(1), jnp.int32(0))
        return state, self.observe(state)

    def step(self, key: Key, env_state: SnakeState, action: Int[Array, ""], params: Any) -> tuple[SnakeState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(
        self, env_state: SnakeState, action: Int[Array, ""], chance: Float[Array, ""]
    ) -> tuple[SnakeState, TimeStep]:
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Action, [].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """
        s = env_state
        neck = s.cells[tuple(s.head + to_move(action))] == 1 + (action ^ 1)  # its next cell is the head
        action = jnp.where(neck, action ^ 1, action)
        head = s.head + to_move(action)
        tile = s.cells[tuple(head)]
        died, eats = (tile == WALL) | (tile > 0), tile == FOOD
        leaves = ~died & ~eats
        food = find_free_cell(s.cells, chance, s.free)
        cells = set_cell(s.cells, s.head, 1 + action, ~died)
        tail = jnp.where(leaves, s.tail + to_move(cells[tuple(s.tail)] - 1), s.tail)
        cells = set_cell(cells, s.tail, EMPTY, leaves)
        cells = set_cell(cells, head, HEAD, ~died)
        cells = set_cell(cells, food, FOOD, eats)
        rows = np.arange(len(cells))
        free = s.free - ((rows == jnp.where(eats, food, head)[0]) & ~died) + ((rows == s.tail[0]) & leaves)
        steps = s.steps + 1
        state = SnakeState(cells, free, jnp.where(died, s.head, head), tail, s.length + eats, steps)
        reward = jnp.where(died, -1.0, jnp.where(eats, 0.1, 0.0)).astype(jnp.float32)
        late = ~died & (steps >= self.max_episode_steps)
        return state, TimeStep(self.observe(state), reward, died, late)

    def observe(self, env_state: SnakeState) -> Array:
        """Return the observation of a state.

        Args:
            env_state: State to observe.
        """
        if self.image:
            return self.render(env_state)
        side = 2 * self.vision + 1
        near = jax.lax.dynamic_slice(env_state.cells, env_state.head - self.vision, (side, side))
        return jnp.stack([near == FOOD, near == WALL, near > 0], -1).astype(jnp.uint8)

    def render(self, env_state: SnakeState) -> screen.Picture:
        """Render a state as a picture with one pixel per cell and a border, uint8 [height + 2, width + 2, 3].

        Args:
            env_state: State to render.
        """
        edge = self.vision - 1
        cells = env_state.cells[edge : len(env_state.cells) - edge, edge : env_state.cells.shape[1] - edge]
        rows, columns = cells.shape
        picture = screen.create_picture(rows, columns)
        for where, color in ((cells == WALL, screen.GRAY), (cells == FOOD, screen.RED), (cells > 0, screen.CYAN)):
            picture = screen.paint(picture, where, color)
        return screen.paint(picture, mask_cell(cells, env_state.head - edge), screen.WHITE)

    def render_frames(self, states: Sequence[SnakeState]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [height + 2, width + 2, 3].
        """
        return screen.render_screens(self, states)


def to_move(action: Int[Array, ""]) -> Int[Array, "2"]:
    """Return the row of MOVES of an action, which is faster than an index."""
    row, column = (action == 1).astype(jnp.int32) - (action == 0), (action == 3).astype(jnp.int32) - (action == 2)
    return jnp.stack([row, column])


def mask_cell(cells: Shaped[Array, "rows columns"], place: Int[Array, "2"]) -> Array:
    """Return a mask of the cell at a place, (row, column)."""
    row, column = np.ogrid[: cells.shape[0], : cells.shape[1]]
    return (row == place[0]) & (column == place[1])


def set_cell(cells: Cells, place: Int[Array, "2"], value: Any, when: Bool[Array, ""] | bool = True) -> Cells:
    """Return the cells with a new value at a place, or unchanged if the place is outside or it is not the time."""
    row = jnp.where(when, place[0], len(cells))  # rows outside are dropped
    return cells.at[row, place[1]].set(jnp.asarray(value, cells.dtype))


def count_free_cells(cells: Cells) -> Int[Array, " rows"]:
    """Return the number of empty cells in each row."""
    return (cells == EMPTY).sum(1, dtype=jnp.int32)


def find_free_cell(cells: Cells, part: Float[Array, ""], free: Int[Array, " rows"] | None = None) -> Int[Array, "2"]:
    """Return the empty cell for which `part` is the fraction of the empty cells before it.

    If no cell is empty, the result is outside of the field.

    Args:
        cells: Cells of the field.
        part: Fraction, [].
        free: Number of empty cells in each row, if it is known.
    """
    free = count_free_cells(cells) if free is None else free
    until = jax.lax.associative_scan(jnp.add, free)  # three times as fast as cumsum on a CPU
    n = jnp.minimum((part * until[-1]).astype(jnp.int32), until[-1] - 1)
    row = jnp.where(until[-1] > 0, (until <= n).sum(dtype=jnp.int32), len(cells))
    rest = n - jnp.where(np.arange(len(cells)) < row, free, 0).sum(dtype=jnp.int32)
    of_row = jax.lax.associative_scan(jnp.add, (cells[row] == EMPTY).astype(jnp.int32))
    column = (of_row <= rest).sum(dtype=jnp.int32)
    return jnp.stack([row, column])
