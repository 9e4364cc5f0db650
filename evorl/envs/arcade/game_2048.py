"""2048: sliding tiles that merge in equal pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Int8

from evorl.envs.arcade import screen
from evorl.spaces import Discrete, MultiDiscrete, ObsWithActionMask
from evorl.types import Key, TimeStep

SIDE, LARGEST = 4, 17  # side of the board, and largest exponent: no tile exceeds 2^17
Board = Int8[Array, "4 4"]  # exponents, 0 for an empty cell
FOUR_PROBABILITY = 0.1  # probability that a new tile is a 4
TILE_COLORS = np.array(
    [(40, 55, 55)] + [(60 + 11 * i, 200 - 9 * i, abs(190 - 23 * i)) for i in range(1, LARGEST + 1)], np.uint8
)


@struct.dataclass
class Game2048State:
    board: Board
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Game2048:
    """2048: slide all tiles to one side; equal tiles that meet merge, and the reward is the new tile's value.

    After each move, a 2 appears on a free cell, or a 4 with probability 0.1. An invalid move, which would not
    move a tile, changes nothing. The episode terminates if no move is valid. The observation is the exponent
    of each tile (2 is 1, 4 is 2; an empty cell is 0), shape [4, 4], with an action mask.

    Args:
        max_episode_steps: Steps after which an episode is truncated.
        image: Whether observations are pictures, uint8 [36, 84, 3], instead of exponents.
    """

    max_episode_steps: int = 10_000
    image: bool = False

    render_fps = 5.0
    default_params = None
    fresh_reset = False
    action_space = Discrete(4)
    action_meanings = ("left", "up", "right", "down")

    @property
    def observation_space(self) -> ObsWithActionMask:
        tiles = MultiDiscrete((LARGEST + 1,) * SIDE**2, shape=(SIDE, SIDE))
        return ObsWithActionMask(screen.make_pixel_space(SIDE * 9, SIDE * 21) if self.image else tiles, (4,))

    def chance(self, key: Key) -> Float[Array, "2"]:
        """Sample two uniform numbers, shape [2]: one selects the cell of the next tile, the other whether it is a 4.

        Args:
            key: Random key of the step.
        """
        return jax.random.uniform(key, (2,))

    def reset(self, key: Key, params: Any) -> tuple[Game2048State, dict[str, Array]]:
        del params
        board = jnp.zeros((SIDE, SIDE), jnp.int8)
        for one in jax.random.split(key):
            board = add_tile(board, self.chance(one))
        state = Game2048State(board, jnp.int32(0))
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: Game2048State, action: Int[Array, ""], params: Any
    ) -> tuple[Game2048State, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(
        self, env_state: Game2048State, action: Int[Array, ""], chance: Float[Array, "2"]
    ) -> tuple[Game2048State, TimeStep]:
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Action, [].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """
        before = env_state.board
        slid, reward = slide_left(orient_board(before, action))
        board = orient_board(slid, action)  # each orientation is its own inverse
        moves = (board != before).any()
        board = jnp.where(moves, add_tile(board, chance), before)
        state = Game2048State(board, env_state.steps + 1)
        over = ~find_legal_moves(board).any()
        late = ~over & (state.steps >= self.max_episode_steps)
        return state, TimeStep(self.observe(state), reward, over, late)

    def observe(self, env_state: Game2048State) -> dict[str, Array]:
        """Return the observation of a state.

        Args:
            env_state: State to observe.
        """
        board = env_state.board
        return {
            "legal": find_legal_moves(board),
            "obs": self.render(env_state) if self.image else board.astype(jnp.int32),
        }

    def render(self, env_state: Game2048State) -> screen.Picture:
        """Render a state as a picture with the numbers of the tiles, uint8 [36, 84, 3].

        Args:
            env_state: State to render.
        """
        tiles = jnp.array(TILE_COLORS)[env_state.board]
        picture = jnp.repeat(jnp.repeat(tiles, 9, 0), 21, 1)
        marks = jnp.array(DIGIT_MASKS)[env_state.board].transpose(0, 2, 1, 3).reshape(SIDE * 9, SIDE * 21)
        return screen.paint(picture, marks, screen.WHITE)

    def render_frames(self, states: Sequence[Game2048State]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [36, 84, 3].
        """
        return screen.render_screens(self, states)


def orient_board(board: Board, action: Int[Array, ""]) -> Board:
    """Turn or mirror the board so that the move is a move to the left."""
    upright = jnp.where((action == 1) | (action == 3), board.T, board)
    flipped = jnp.where(action == 2, upright[:, ::-1], upright)
    return jnp.where(action == 3, board[::-1, ::-1].T, flipped)


def slide_left(board: Board) -> tuple[Board, Float[Array, ""]]:
    """Return the board after a move to the left, and the reward."""
    a, b, c, d = close_gaps(*board.T)
    first, last = (a > 0) & (a == b), (c > 0) & (c == d)
    middle = (b > 0) & (b == c) & ~first
    last &= ~middle
    a, b = a + first, jnp.where(first, 0, b + middle)
    c, d = jnp.where(middle, 0, c + last), jnp.where(last, 0, d)
    earned = jnp.where(first, 2.0**a, 0) + jnp.where(middle, 2.0**b, 0) + jnp.where(last, 2.0**c, 0)
    return jnp.stack(close_gaps(a, b, c, d), 1).astype(jnp.int8), earned.sum().astype(jnp.float32)


def close_gaps(*columns: Array) -> tuple[Array, ...]:
    """Move the tiles of each row to the left until no empty cell is between them."""
    found = list(columns)
    for i in (0, 1, 2, 0, 1, 0):
        gap = found[i] == 0
        found[i], found[i + 1] = jnp.where(gap, found[i + 1], found[i]), jnp.where(gap, 0, found[i + 1])
    return tuple(found)


def find_legal_moves(board: Board) -> Bool[Array, "4"]:
    """Return a mask of the moves that change the board."""

    def can_move(before: Array, after: Array) -> Array:
        return ((after > 0) & ((before == 0) | (before == after))).any()

    left, right, top, bottom = board[:, :-1], board[:, 1:], board[:-1], board[1:]
    return jnp.stack([can_move(left, right), can_move(top, bottom), can_move(right, left), can_move(bottom, top)])


def add_tile(board: Board, chance: Float[Array, "2"]) -> Board:
    """Add a new tile in one of the free cells."""
    free = (board == 0).reshape(-1)
    count = free.sum(dtype=jnp.int32)
    which = jnp.minimum((chance[0] * count).astype(jnp.int32), count - 1)
    there = free & (jnp.cumsum(free, dtype=jnp.int32) == which + 1)
    return jnp.where(there.reshape(SIDE, SIDE), jnp.where(chance[1] < FOUR_PROBABILITY, 2, 1), board).astype(jnp.int8)


def _make_digit_masks() -> np.ndarray:
    """Return the pixels that the number on a tile covers, bool [exponent, 9, 21].

    In the 3 x 5 font, each digit is written as five rows of three bits.
    """
    font = {"0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757",
            "7": "71111", "8": "75757", "9": "75717"}  # fmt: skip
    marks = np.zeros((LARGEST + 1, 9, 21), bool)
    for exponent in range(1, LARGEST + 1):
        text = str(2**exponent)
        text, left = (text[:-3] + "k", 3) if len(text) > 5 else (text, (21 - 4 * len(text)) // 2)
        for i, digit in enumerate(text):
            for row, bits in enumerate(font.get(digit, "56455")):
                marks[exponent, row + 2, left + 4 * i : left + 4 * i + 3] = [
                    int(bits) >> shift & 1 for shift in (2, 1, 0)
                ]
    return marks


DIGIT_MASKS = _make_digit_masks()
