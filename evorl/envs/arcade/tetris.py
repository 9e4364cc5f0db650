"""Tetris, with a preview of the next pieces and a place to hold one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int, UInt32

from evorl import tree
from evorl.envs.arcade import screen
from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep

ROWS, COLUMNS, SIZE, START, FALL, LONGEST = 20, 10, 4, 5, 4, 10_000
PIECES = (  # O, I, S, Z, T, L, J, each in its four rotations
    ("11/11",) * 4,
    ("1/1/1/1", "1111") * 2,
    ("10/11/01", "011/110") * 2,
    ("01/11/10", "110/011") * 2,
    ("01/11/01", "010/111", "10/11/10", "111/010"),
    ("10/10/11", "111/100", "11/01/01", "001/111"),
    ("01/01/11", "100/111", "11/10/10", "111/001"),
)
COLORS = (screen.YELLOW, screen.CYAN, screen.GREEN, screen.RED, screen.PURPLE, screen.ORANGE, screen.BLUE)
NO_PIECE = len(PIECES)  # value of `held` if nothing is held
FULL_ROW = (1 << COLUMNS) - 1
LEFT, RIGHT, ROTATE, SOFT_DROP, HARD_DROP, HOLD = range(1, 7)
RowBits = UInt32[Array, " rows"]  # the lowest bit of a row is the first column


def _parse_piece(piece: str) -> list[int]:
    rows = [int(row[::-1], 2) for row in piece.split("/")]
    return rows + [0] * (SIZE - len(rows))


SHAPES = np.array([[_parse_piece(turn) for turn in turns] for turns in PIECES], np.uint32).reshape(-1, SIZE)


@struct.dataclass
class TetrisState:
    rows: UInt32[Array, " 20"]  # bits of the cells at rest
    piece: Int[Array, ""]
    turn: Int[Array, ""]
    row: Int[Array, ""]
    column: Int[Array, ""]
    fall: Int[Array, ""]  # steps since the last fall
    queue: Int[Array, " 2"]  # the next pieces
    held: Int[Array, ""]  # NO_PIECE for nothing
    may_hold: Bool[Array, ""]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Tetris:
    """Tetris: the reward is 0.1, 0.3, 0.5 or 1 for clearing one to four lines at once.

    A soft drop has reward 0.01 per row, a hard drop 0.02 per row. The game follows PufferLib's rules. A piece
    falls by one row every fourth step, and comes to rest if it cannot fall. The episode terminates if a new
    piece does not fit. The actions are nothing, left, right, up (rotate), down (soft drop), drop (hard drop)
    and hold.

    To hold exchanges the falling piece for the held one, which starts at the top. As in PufferLib, the
    exchange has no effect if the held piece would not fit one column to the right of the falling piece, or if
    no piece has come to rest since the last exchange.

    The observation is a vector with the cells (1 at rest, 2 for the falling piece); the time, the steps since
    the last fall, the row, column and rotation of the piece, and whether a piece can be held; and the piece,
    the next two and the held one, each one-hot.

    Args:
        max_episode_steps: Steps after which an episode is truncated.
        image: Whether observations are pictures, uint8 [20, 15, 3], instead of vectors.
    """

    max_episode_steps: int = LONGEST
    image: bool = False

    render_fps = 10.0
    default_params = None
    fresh_reset = False
    action_space = Discrete(7)
    action_meanings = ("nothing", "left", "right", "up", "down", "drop", "hold")

    @property
    def observation_space(self) -> Box:
        return (
            screen.make_pixel_space(ROWS, COLUMNS + 5)
            if self.image
            else Box(0.0, 3.0, (ROWS * COLUMNS + 6 + 4 * len(PIECES),))
        )

    def chance(self, key: Key) -> Int[Array, ""]:
        """Sample the piece that is added to the queue if a new piece appears, an int [].

        Args:
            key: Random key of the step.
        """
        return jax.random.randint(key, (), 0, len(PIECES))

    def reset(self, key: Key, params: Any) -> tuple[TetrisState, Array]:
        del params
        first = jax.random.randint(key, (3,), 0, len(PIECES))
        zero = jnp.int32(0)
        state = TetrisState(
            jnp.zeros(ROWS, jnp.uint32), first[0], zero, zero, jnp.int32(START), zero, first[1:], jnp.int32(NO_PIECE),
            jnp.bool_(True), zero,
        )  # fmt: skip
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: TetrisState, action: Int[Array, ""], params: Any
    ) -> tuple[TetrisState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(
        self, env_state: TetrisState, action: Int[Array, ""], chance: Int[Array, ""]
    ) -> tuple[TetrisState, TimeStep]:
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Action, [].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """
        s = replace(env_state, steps=env_state.steps + 1, fall=env_state.fall + 1)
        s, softly = apply_action(s, action, chance)
        deepest = find_landing_row(s)
        hard = action == HARD_DROP
        dropped = jnp.where(hard, deepest - s.row, 0)
        falls = (s.fall == FALL) & ~hard
        rests = hard | (falls & (deepest == s.row))
        row = jnp.where(hard, deepest, s.row + (falls & ~rests))
        s = replace(s, row=row, fall=jnp.where(falls, 0, s.fall))
        rows, lines = clear_lines(s.rows | place_piece(s))
        room = ~(rows[:SIZE] & get_piece_bits(s.queue[0], 0) << START).any()
        rows = jnp.where(rests, rows, s.rows)
        lines = jnp.where(rests, lines, 0)
        over = rests & ~room
        s = replace(s, rows=rows, may_hold=s.may_hold | rests)
        s = tree.select(rests & room, spawn_piece(s, chance), s)
        combo = jnp.where(lines == 4, 1.0, jnp.where(lines > 0, 0.2 * lines - 0.1, 0.0))
        reward = 0.01 * softly + 0.02 * dropped + combo
        late = ~over & (s.steps >= self.max_episode_steps)
        return s, TimeStep(self.observe(s), reward.astype(jnp.float32), over, late)

    def observe(self, env_state: TetrisState) -> Array:
        """Return the observation of a state.

        Args:
            env_state: State to observe.
        """
        s = env_state
        if self.image:
            return self.render(s)
        numbers = s.steps / LONGEST, s.fall / FALL, s.row / ROWS, s.column / COLUMNS, s.turn, s.may_hold
        kinds = jnp.concatenate([jnp.stack([s.piece]), s.queue, jnp.stack([s.held])])
        known = kinds[:, None] == np.arange(len(PIECES))
        parts = self._build_cells(s).reshape(-1), jnp.stack([jnp.float32(x) for x in numbers]), known.reshape(-1)
        return jnp.concatenate([part.astype(jnp.float32) for part in parts])

    def render(self, env_state: TetrisState) -> screen.Picture:
        """Render a state as a picture of the cells, with the held and next pieces at the side, uint8 [20, 15, 3].

        Args:
            env_state: State to render.
        """
        cells = self._build_cells(env_state)
        color = jnp.array((*COLORS, screen.NIGHT), jnp.uint8)
        picture = screen.paint(screen.create_picture(ROWS, COLUMNS, (30, 45, 45)), cells == 1, screen.GRAY)
        picture = jnp.where((cells == 2)[..., None], color[env_state.piece], picture)
        aside = screen.create_picture(ROWS, 5)
        for top, piece in ((0, env_state.held), (6, env_state.queue[0]), (12, env_state.queue[1])):
            bits = get_piece_bits(jnp.minimum(piece, NO_PIECE - 1), 0)[:, None] >> np.arange(SIZE, dtype=np.uint32) & 1
            there = (bits == 1) & (piece != NO_PIECE)
            box = jnp.where(there[..., None], color[piece], jnp.array(screen.NIGHT, jnp.uint8))
            aside = aside.at[top + 1 : top + 1 + SIZE, 1:].set(box)
        return jnp.concatenate([picture, aside], 1)

    def render_frames(self, states: Sequence[TetrisState]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [20, 15, 3].
        """
        return screen.render_screens(self, states)

    def _build_cells(self, s: TetrisState) -> Array:
        """Return the cells, [20, 10]: 1 for cells at rest, 2 for the falling piece, else 0."""
        columns = np.arange(COLUMNS, dtype=np.uint32)
        rests, falls = (bits[:, None] >> columns & 1 for bits in (s.rows, place_piece(s)))
        return jnp.where(falls == 1, 2, rests)


def get_piece_bits(piece: Int[Array, ""], turn: Any) -> RowBits:
    """Return the bits of the four rows of a piece."""
    return jnp.array(SHAPES)[piece * 4 + turn]


def place_piece(s: TetrisState) -> RowBits:
    """Return the bits of the falling piece in all rows."""
    bits = get_piece_bits(s.piece, s.turn) << s.column.astype(jnp.uint32)
    at = np.arange(ROWS)[:, None] == s.row + np.arange(SIZE)
    return jnp.where(at, bits, 0).sum(1, dtype=jnp.uint32)


def apply_action(s: TetrisState, action: Int[Array, ""], chance: Int[Array, ""]) -> tuple[TetrisState, Bool[Array, ""]]:
    """Apply the action if there is room for it; return the state, and whether it was a soft drop."""
    holds, softly = action == HOLD, action == SOFT_DROP
    wanted = replace(
        s,
        piece=jnp.where(holds & (s.held != NO_PIECE), s.held, s.piece),
        column=s.column + (action == RIGHT) - (action == LEFT) + holds,
        turn=jnp.where(action == ROTATE, (s.turn + 1) % 4, s.turn),
        row=s.row + softly,
    )
    room = is_valid_placement(wanted, wraps=holds)
    top = replace(s, piece=s.held, turn=jnp.int32(0), row=jnp.int32(0), column=jnp.int32(START), fall=jnp.int32(0))
    swapped = tree.select(s.held == NO_PIECE, spawn_piece(s, chance), top)
    swapped = replace(swapped, held=s.piece, may_hold=jnp.bool_(False))
    may = s.may_hold & (room | (s.held == NO_PIECE))
    after = tree.select(~holds & room, wanted, s)
    return tree.select(holds & may, swapped, after), softly & room


def is_valid_placement(s: TetrisState, wraps: Bool[Array, ""]) -> Bool[Array, ""]:
    """Return whether the piece is between the walls and overlaps nothing.

    If `wraps` is true, cells beyond the right wall are taken as cells at the left of the row below, and cells
    below the floor are ignored.
    """
    low = s.column < 0
    bits = get_piece_bits(s.piece, s.turn) << jnp.maximum(s.column, 0).astype(jnp.uint32)
    row = np.arange(ROWS + SIZE + 1)
    below = jnp.concatenate([s.rows, jnp.broadcast_to(jnp.where(wraps, 0, FULL_ROW).astype(jnp.uint32), (SIZE + 1,))])
    window = [jnp.where(row == s.row + i, below, 0).sum(dtype=jnp.uint32) for i in range(SIZE + 1)]
    inside = jnp.stack([bits[i] & window[i] for i in range(SIZE)])
    outside = jnp.stack([bits[i] >> COLUMNS & jnp.where(wraps, window[i + 1], FULL_ROW) for i in range(SIZE)])
    return ~((inside | outside).any() | low)


def find_landing_row(s: TetrisState) -> Int[Array, ""]:
    """Return the row to which the piece would drop."""
    bits = get_piece_bits(s.piece, s.turn) << s.column.astype(jnp.uint32)
    below = jnp.concatenate([s.rows, jnp.full(SIZE, FULL_ROW, jnp.uint32)])
    touches = sum((below[i : i + ROWS + 1] & bits[i]) for i in range(SIZE)) != 0  # indexed by the row of the piece
    return jnp.where(touches & (np.arange(ROWS + 1) > s.row), np.arange(ROWS + 1), ROWS + 1).min() - 1


def clear_lines(rows: RowBits) -> tuple[RowBits, Int[Array, ""]]:
    """Remove the full rows; return the rows and the number of removed ones."""
    full = rows == FULL_ROW
    word = (full.astype(jnp.uint32) << np.arange(ROWS, dtype=np.uint32)).sum(dtype=jnp.uint32)
    falls = jnp.where(full, ROWS, jax.lax.population_count(word >> np.arange(1, ROWS + 1, dtype=np.uint32)))
    falls, above = (jnp.concatenate([jnp.zeros(SIZE, x.dtype), x]) for x in (falls, rows))
    parts = ((slice(SIZE - n, SIZE - n + ROWS), n) for n in range(SIZE + 1))
    kept = [jnp.where(falls[at] == n, above[at], 0) for at, n in parts]
    return jnp.stack(kept).sum(0, dtype=jnp.uint32), full.sum(dtype=jnp.int32)


def spawn_piece(s: TetrisState, chance: Int[Array, ""]) -> TetrisState:
    """Return the state with the next piece at the top."""
    zero, queue = jnp.int32(0), jnp.stack([s.queue[1], chance])
    return replace(s, piece=s.queue[0], turn=zero, row=zero, column=jnp.int32(START), fall=zero, queue=queue)
