"""Snake: a snake that grows with each food."""

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

EMPTY, FOOD, WALL = 0, -1, -2  # values of cells; a value n > 0 is a snake's cell that it leaves in n steps
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)], np.int32)  # up, down, left, right
Cells = Int16[Array, "rows columns"]


@struct.dataclass
class SnakeState:
    cells: Cells  # surrounded by walls of width `vision`
    head: Int[Array, " 2"]  # row and column
    back: Int[Array, " 2"]  # from the head to the next cell of the body; (0, 0) if there is none
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
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Action, [].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """
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


def mask_cell(cells: Shaped[Array, "rows columns"], place: Int[Array, "2"]) -> Array:
    """Return a mask of the cell at a place, (row, column)."""
    row, column = np.ogrid[: cells.shape[0], : cells.shape[1]]
    return (row == place[0]) & (column == place[1])


def set_cell(cells: Cells, place: Int[Array, "2"], value: Any) -> Cells:
    """Return the cells with a new value at a place."""
    return jnp.where(mask_cell(cells, place), jnp.int16(value), cells)


def find_free_cell(cells: Cells, part: Float[Array, ""]) -> Int[Array, "2"]:
    """Return the free cell for which `part` is the fraction of the free cells before it.

    If no cell is free, the result is outside of the field.
    """
    free = cells == EMPTY
    of_row = free.sum(1, dtype=jnp.int32)
    before = jnp.cumsum(of_row)
    n = jnp.minimum((part * before[-1]).astype(jnp.int32), before[-1] - 1)
    row = jnp.where(before[-1] > 0, (before <= n).sum(dtype=jnp.int32), len(cells))
    in_row = (free & (np.arange(len(cells)) == row)[:, None]).sum(0, dtype=jnp.int32)
    rest = n - jnp.where(np.arange(len(cells)) == row, before - of_row, 0).sum(dtype=jnp.int32)
    return jnp.stack([row, (jnp.cumsum(in_row) <= rest).sum(dtype=jnp.int32)])
