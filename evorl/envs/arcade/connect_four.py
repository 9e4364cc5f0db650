"""Connect Four against an opponent that looks three moves ahead."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt32

from evorl.envs.arcade import screen
from evorl.spaces import Box, Discrete, Legal
from evorl.types import Key, TimeStep

ROWS, COLUMNS = 6, 7
# how far apart the bits of a line are, up, down right, right and up right: a column has six and a spare one
LINES = (1, ROWS, ROWS + 1, ROWS + 2)
BOOK = {3: 2, 4: 3}  # by where alone the player's first piece lies
OURS, THEIRS = 0, 1
Words: TypeAlias = tuple[Any, Any]  # the lower and the upper 32 bits of boards, uint32


@struct.dataclass
class ConnectFourState:
    low: Any  # [2] uint32, the lower bits of our pieces and of theirs
    high: Any  # [2] uint32, the upper ones


@dataclass(frozen=True)
class ConnectFour:
    """Four in a row before the other has them: reward 1 if so, -1 if not or if the column is full, 0 for a full board.

    PufferLib's rules and opponent, but that a full board is a draw. We begin. The opponent wins where it can; otherwise
    it counts lines of play: 100 for each that we win next, -10 for each that it wins then, 1 for each that we win after
    that, and takes a column of the least sum. Sees the cells by column from below, 1 for ours and -1 for theirs, or
    with `image` a screen, and which columns have room.
    """

    image: bool = False

    default_params = ()
    fresh_reset = False
    max_episode_steps = ROWS * COLUMNS // 2
    action_space = Discrete(COLUMNS)
    action_meanings = tuple("1234567")  # columns

    @property
    def observation_space(self) -> Legal:
        board = Box(-1.0, 1.0, (ROWS * COLUMNS,))
        return Legal(screen.space(ROWS, COLUMNS) if self.image else board, (COLUMNS,))

    def chance(self, key: Key) -> Float[Array, ""]:
        """Which of the opponent's equal moves it takes, from 0 for the first to 1."""
        return jax.random.uniform(key)

    def reset(self, key: Key, params: Any) -> tuple[ConnectFourState, dict[str, Array]]:
        del key, params
        state = ConnectFourState(jnp.zeros(2, jnp.uint32), jnp.zeros(2, jnp.uint32))
        return state, self.seen(state)

    def step(
        self, key: Key, env_state: ConnectFourState, action: Int[Array, ""], params: Any
    ) -> tuple[ConnectFourState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(
        self, env_state: ConnectFourState, action: Int[Array, ""], chance: Float[Array, ""]
    ) -> tuple[ConnectFourState, TimeStep]:
        """A step without chance, which is given."""
        ours, theirs = pieces(env_state)
        height = heights(env_state)
        legal = (height < ROWS)[action]
        moved = either(ours, cell(action, jnp.where(legal, height[action], ROWS)))
        wins = won(moved)
        height = height + (legal & (np.arange(COLUMNS) == action))
        reply = answer(moved, theirs, height, chance)
        plays = legal & ~wins & (height < ROWS).any()
        after = either(theirs, cell(reply, jnp.where(plays, height[reply], ROWS)))
        loses = ~legal | (plays & won(after))
        state = ConnectFourState(jnp.stack([moved[0], after[0]]), jnp.stack([moved[1], after[1]]))
        over = wins | loses | (heights(state) == ROWS).all()
        reward = jnp.where(wins, 1.0, jnp.where(loses, -1.0, 0.0)).astype(jnp.float32)
        return state, TimeStep(self.seen(state), reward, over, jnp.bool_(False))

    def seen(self, env_state: ConnectFourState) -> dict[str, Array]:
        """The observation."""
        cells = board(env_state).astype(jnp.float32).reshape(-1)
        return {"legal": heights(env_state) < ROWS, "obs": self.screen(env_state) if self.image else cells}

    def screen(self, env_state: ConnectFourState) -> screen.Picture:
        """A pixel for each cell."""
        cells = board(env_state).T[::-1]
        picture = screen.painted(screen.blank(ROWS, COLUMNS, (0, 60, 60)), cells > 0, screen.CYAN)
        return screen.painted(picture, cells < 0, screen.RED)

    def draw(self, states: list[ConnectFourState], folder: Path) -> list[Path]:
        """A GIF and a PNG of an episode."""
        return screen.draw(self, states, 0.7, folder)


def pieces(state: ConnectFourState) -> tuple[Words, Words]:
    """Our pieces and theirs."""
    return (state.low[OURS], state.high[OURS]), (state.low[THEIRS], state.high[THEIRS])


def board(state: ConnectFourState) -> Int[Array, "7 6"]:
    """1 for our pieces and -1 for theirs, by column from below."""
    ours, theirs = (
        (columns(of)[:, None] >> np.arange(ROWS, dtype=np.uint32)).astype(jnp.int32) & 1 for of in pieces(state)
    )
    return ours - theirs


def heights(state: ConnectFourState) -> Int[Array, "7"]:
    """Pieces in each column."""
    ours, theirs = pieces(state)
    return jax.lax.population_count(columns(ours) | columns(theirs)).astype(jnp.int32)


def columns(words: Words) -> UInt32[Array, "*boards 7"]:
    """The bits of each column, from below."""
    found = []
    for place in range(0, COLUMNS * (ROWS + 1), ROWS + 1):
        low = down(words, place)[0] if 0 < place < 32 else words[place // 32] >> place % 32
        found.append(low & (1 << ROWS) - 1)
    return jnp.stack(found, -1)


def cell(column: Any, row: Any) -> Words:
    """The bit of a cell; none above the board."""
    place = (column * (ROWS + 1) + row).astype(jnp.uint32)
    one = jnp.where(row < ROWS, jnp.uint32(1), jnp.uint32(0))
    return jnp.where(place < 32, one << (place & 31), 0), jnp.where(place >= 32, one << (place & 31), 0)


def up(words: Words, n: int) -> Words:
    """Bits n places higher."""
    return words[0] << n, words[1] << n | words[0] >> (32 - n)


def down(words: Words, n: int) -> Words:
    """Bits n places lower."""
    return words[0] >> n | words[1] << (32 - n), words[1] >> n


def either(a: Words, b: Words) -> Words:
    """Bits that are set in one of two."""
    return a[0] | b[0], a[1] | b[1]


def both(*all_of: Words) -> Words:
    """Bits that are set in all."""
    low, high = zip(*all_of, strict=True)
    return jax.tree.reduce(jnp.bitwise_and, low), jax.tree.reduce(jnp.bitwise_and, high)


def won(words: Words) -> Bool[Array, "..."]:
    """Whether boards have four in a row."""
    found = jnp.uint32(0)
    for n in LINES:
        pairs = both(words, down(words, n))
        low, high = both(pairs, down(pairs, 2 * n))
        found = found | low | high
    return found != 0


def threats(words: Words) -> Words:
    """The bits that would be the fourth in a row."""
    found = jnp.uint32(0), jnp.uint32(0)
    for n in LINES:
        a, b, c = (up(words, i * n) for i in (1, 2, 3))
        d, e, f = (down(words, i * n) for i in (1, 2, 3))
        for line in (both(a, b, c), both(a, b, d), both(a, d, e), both(d, e, f)):
            found = either(found, line)
    return found


def values(ours: Words, theirs: Words, height: Int[Array, "7"]) -> tuple[Int[Array, "7"], Bool[Array, "7"]]:
    """What the opponent counts for each of its moves, and which of them win.

    Of the three moves after it the last is not played: what matters is which cells would win, and whether they are free
    next. In each column a bit tells it of the next free cell, of the one above it, and so on.
    """
    move = np.arange(COLUMNS)
    shift = height.astype(jnp.uint32)

    def by_column(words: Words) -> UInt32[Array, "*boards 7"]:
        return columns(threats(words)) >> shift

    wins = by_column(theirs) & 1 == 1
    after = either(theirs, cell(move, height))  # by the opponent's move
    replies = cell(move[:, None], height[:, None] + np.arange(2))  # one higher up, if in the same column
    answered = either(ours, replies)
    ours_next, ours_then = by_column(ours), by_column(answered)

    def count(_: None, moved: tuple[Array, Array]) -> tuple[None, Array]:
        column, theirs_then = moved
        same = (move == column).astype(jnp.uint32)
        more = same + np.eye(COLUMNS, dtype=np.uint32)  # [our reply, column]
        bits = jnp.where((move == column)[:, None], ours_then[:, 1], ours_then[:, 0])
        now, then = (bits >> more & 1).astype(jnp.int32), (bits >> more + 1 & 1).astype(jnp.int32)
        lines = now.sum(1, keepdims=True) - now + then
        lines = jnp.where(theirs_then >> more & 1 == 1, -10, lines)
        lines = jnp.where(shift + more < ROWS, lines, 0).sum(1)
        lines = jnp.where(ours_next >> same & 1 == 1, 100, lines)
        return None, jnp.where(shift + same < ROWS, lines, 0).sum()

    return jax.lax.scan(count, None, (jnp.arange(COLUMNS), by_column(after)))[1], wins


def answer(ours: Words, theirs: Words, height: Int[Array, "7"], chance: Float[Array, ""]) -> Int[Array, ""]:
    """The opponent's column."""
    counted, wins = values(ours, theirs, height)
    counted = jnp.where(height < ROWS, counted, 9999)
    equal = counted == counted.min()
    place = jnp.floor(chance * equal.sum()).astype(jnp.int32)
    move = (jnp.cumsum(equal) <= place).sum(dtype=jnp.int32)
    move = jnp.where(wins.any(), jnp.argmax(wins), move)
    for column, reply in BOOK.items():
        low, high = cell(jnp.int32(column), jnp.int32(0))
        move = jnp.where((ours[0] == low) & (ours[1] == high) & ((theirs[0] | theirs[1]) == 0), reply, move)
    return move.astype(jnp.int32)
