"""Connect Four against an opponent that looks three moves ahead."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt32

from evorl.envs.arcade import screen
from evorl.spaces import Box, Discrete, ObsWithActionMask
from evorl.types import Key, TimeStep

ROWS, COLUMNS = 6, 7
# distance between the bits of a line: up, down right, right, up right; a column has six bits and a spare one
LINE_SHIFTS = (1, ROWS, ROWS + 1, ROWS + 2)
OPENING_REPLIES = {3: 2, 4: 3}  # opponent's reply to the agent's first move, by column
OURS, THEIRS = 0, 1
Words: TypeAlias = tuple[Any, Any]  # the lower and the upper 32 bits of boards, uint32


@struct.dataclass
class ConnectFourState:
    low: UInt32[Array, " 2"]  # lower 32 bits of the agent's pieces, and of the opponent's
    high: UInt32[Array, " 2"]  # upper 32 bits of both


@dataclass(frozen=True)
class ConnectFour:
    """Connect Four against a scripted opponent: the reward is 1 for a win, -1 for a loss, and 0 for a draw.

    The agent moves first. A move into a full column loses. The rules and the opponent are PufferLib's, except
    that a full board is a draw. The opponent wins if it can. Otherwise, it gives each column a score and
    takes one with the lowest score. The score counts lines of play: 100 for each reply by which the agent
    wins, -10 for each move by which the opponent wins after that, and 1 for each by which the agent wins
    after that.

    The observation is a vector of the 42 cells, column by column from the bottom: 1 for the agent's pieces,
    -1 for the opponent's. The action mask marks the columns that are not full.

    Args:
        image: Whether observations are pictures, uint8 [6, 7, 3], instead of vectors.
    """

    image: bool = False

    render_fps = 1.4
    default_params = None
    fresh_reset = False
    max_episode_steps = ROWS * COLUMNS // 2
    action_space = Discrete(COLUMNS)
    action_meanings = tuple("1234567")  # columns

    @property
    def observation_space(self) -> ObsWithActionMask:
        board = Box(-1.0, 1.0, (ROWS * COLUMNS,))
        return ObsWithActionMask(screen.make_pixel_space(ROWS, COLUMNS) if self.image else board, (COLUMNS,))

    def chance(self, key: Key) -> Float[Array, ""]:
        """Sample the number in [0, 1) that selects one of the opponent's equally good moves, shape [].

        Args:
            key: Random key of the step.
        """
        return jax.random.uniform(key)

    def reset(self, key: Key, params: Any) -> tuple[ConnectFourState, dict[str, Array]]:
        del key, params
        state = ConnectFourState(jnp.zeros(2, jnp.uint32), jnp.zeros(2, jnp.uint32))
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: ConnectFourState, action: Int[Array, ""], params: Any
    ) -> tuple[ConnectFourState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(
        self, env_state: ConnectFourState, action: Int[Array, ""], chance: Float[Array, ""]
    ) -> tuple[ConnectFourState, TimeStep]:
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Action, [].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """
        ours, theirs = get_pieces(env_state)
        height = compute_heights(env_state)
        legal = (height < ROWS)[action]
        moved = bitwise_or(ours, get_cell_bit(action, jnp.where(legal, height[action], ROWS)))
        wins = has_won(moved)
        height = height + (legal & (np.arange(COLUMNS) == action))
        reply = choose_reply(moved, theirs, height, chance)
        plays = legal & ~wins & (height < ROWS).any()
        after = bitwise_or(theirs, get_cell_bit(reply, jnp.where(plays, height[reply], ROWS)))
        loses = ~legal | (plays & has_won(after))
        state = ConnectFourState(jnp.stack([moved[0], after[0]]), jnp.stack([moved[1], after[1]]))
        over = wins | loses | (compute_heights(state) == ROWS).all()
        reward = jnp.where(wins, 1.0, jnp.where(loses, -1.0, 0.0)).astype(jnp.float32)
        return state, TimeStep(self.observe(state), reward, over, jnp.bool_(False))

    def observe(self, env_state: ConnectFourState) -> dict[str, Array]:
        """Return the observation of a state.

        Args:
            env_state: State to observe.
        """
        cells = decode_board(env_state).astype(jnp.float32).reshape(-1)
        return {"legal": compute_heights(env_state) < ROWS, "obs": self.render(env_state) if self.image else cells}

    def render(self, env_state: ConnectFourState) -> screen.Picture:
        """Render a state as a picture with one pixel per cell, uint8 [6, 7, 3].

        Args:
            env_state: State to render.
        """
        cells = decode_board(env_state).T[::-1]
        picture = screen.paint(screen.create_picture(ROWS, COLUMNS, (0, 60, 60)), cells > 0, screen.CYAN)
        return screen.paint(picture, cells < 0, screen.RED)

    def render_frames(self, states: Sequence[ConnectFourState]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [6, 7, 3].
        """
        return screen.render_screens(self, states)


def get_pieces(state: ConnectFourState) -> tuple[Words, Words]:
    """Return the bits of the agent's pieces, and of the opponent's."""
    return (state.low[OURS], state.high[OURS]), (state.low[THEIRS], state.high[THEIRS])


def decode_board(state: ConnectFourState) -> Int[Array, "7 6"]:
    """Return 1 for the agent's pieces and -1 for the opponent's, by column from the bottom."""
    ours, theirs = (
        (get_column_bits(of)[:, None] >> np.arange(ROWS, dtype=np.uint32)).astype(jnp.int32) & 1
        for of in get_pieces(state)
    )
    return ours - theirs


def compute_heights(state: ConnectFourState) -> Int[Array, "7"]:
    """Return the number of pieces in each column."""
    ours, theirs = get_pieces(state)
    return jax.lax.population_count(get_column_bits(ours) | get_column_bits(theirs)).astype(jnp.int32)


def get_column_bits(words: Words) -> UInt32[Array, "*boards 7"]:
    """Return the bits of each column, the lowest bit for the bottom cell."""
    found = []
    for place in range(0, COLUMNS * (ROWS + 1), ROWS + 1):
        low = shift_down(words, place)[0] if 0 < place < 32 else words[place // 32] >> place % 32
        found.append(low & (1 << ROWS) - 1)
    return jnp.stack(found, -1)


def get_cell_bit(column: Any, row: Any) -> Words:
    """Return boards with the bit of one cell, or with no bit if it is above the board."""
    place = (column * (ROWS + 1) + row).astype(jnp.uint32)
    one = jnp.where(row < ROWS, jnp.uint32(1), jnp.uint32(0))
    return jnp.where(place < 32, one << (place & 31), 0), jnp.where(place >= 32, one << (place & 31), 0)


def shift_up(words: Words, n: int) -> Words:
    """Shift all bits n places up."""
    return words[0] << n, words[1] << n | words[0] >> (32 - n)


def shift_down(words: Words, n: int) -> Words:
    """Shift all bits n places down."""
    return words[0] >> n | words[1] << (32 - n), words[1] >> n


def bitwise_or(a: Words, b: Words) -> Words:
    """Return the bits that are set in either of two boards."""
    return a[0] | b[0], a[1] | b[1]


def bitwise_and(*all_of: Words) -> Words:
    """Return the bits that are set in all boards."""
    low, high = zip(*all_of, strict=True)
    return jax.tree.reduce(jnp.bitwise_and, low), jax.tree.reduce(jnp.bitwise_and, high)


def has_won(words: Words) -> Bool[Array, "..."]:
    """Return whether boards have four in a row."""
    found = jnp.uint32(0)
    for n in LINE_SHIFTS:
        pairs = bitwise_and(words, shift_down(words, n))
        low, high = bitwise_and(pairs, shift_down(pairs, 2 * n))
        found = found | low | high
    return found != 0


def find_threats(words: Words) -> Words:
    """Return the bits of the cells that would complete four in a row."""
    found = jnp.uint32(0), jnp.uint32(0)
    for n in LINE_SHIFTS:
        a, b, c = (shift_up(words, i * n) for i in (1, 2, 3))
        d, e, f = (shift_down(words, i * n) for i in (1, 2, 3))
        for line in (bitwise_and(a, b, c), bitwise_and(a, b, d), bitwise_and(a, d, e), bitwise_and(d, e, f)):
            found = bitwise_or(found, line)
    return found


def evaluate_moves(ours: Words, theirs: Words, height: Int[Array, "7"]) -> tuple[Int[Array, "7"], Bool[Array, "7"]]:
    """Return the opponent's score of each of its moves, and which of them win.

    The last of the three moves that follow is not simulated. It is enough to know which cells would win and
    whether they are then free. `find_column_threats` returns, for each column, a bit for the next free cell,
    one for the cell above it, and so on.
    """
    move = np.arange(COLUMNS)
    shift = height.astype(jnp.uint32)

    def find_column_threats(words: Words) -> UInt32[Array, "*boards 7"]:
        return get_column_bits(find_threats(words)) >> shift

    wins = find_column_threats(theirs) & 1 == 1
    after = bitwise_or(theirs, get_cell_bit(move, height))  # for each move of the opponent
    replies = get_cell_bit(move[:, None], height[:, None] + np.arange(2))  # one higher up, if in the same column
    answered = bitwise_or(ours, replies)
    ours_next, ours_then = find_column_threats(ours), find_column_threats(answered)

    def score_move(_: None, moved: tuple[Array, Array]) -> tuple[None, Array]:
        column, theirs_then = moved
        same = (move == column).astype(jnp.uint32)
        more = same + np.eye(COLUMNS, dtype=np.uint32)  # [agent's reply, column]
        bits = jnp.where((move == column)[:, None], ours_then[:, 1], ours_then[:, 0])
        now, then = (bits >> more & 1).astype(jnp.int32), (bits >> more + 1 & 1).astype(jnp.int32)
        lines = now.sum(1, keepdims=True) - now + then
        lines = jnp.where(theirs_then >> more & 1 == 1, -10, lines)
        lines = jnp.where(shift + more < ROWS, lines, 0).sum(1)
        lines = jnp.where(ours_next >> same & 1 == 1, 100, lines)
        return None, jnp.where(shift + same < ROWS, lines, 0).sum()

    return jax.lax.scan(score_move, None, (jnp.arange(COLUMNS), find_column_threats(after)))[1], wins


def choose_reply(ours: Words, theirs: Words, height: Int[Array, "7"], chance: Float[Array, ""]) -> Int[Array, ""]:
    """Return the opponent's column."""
    counted, wins = evaluate_moves(ours, theirs, height)
    counted = jnp.where(height < ROWS, counted, 9999)
    equal = counted == counted.min()
    place = jnp.floor(chance * equal.sum()).astype(jnp.int32)
    move = (jnp.cumsum(equal) <= place).sum(dtype=jnp.int32)
    move = jnp.where(wins.any(), jnp.argmax(wins), move)
    for column, reply in OPENING_REPLIES.items():
        low, high = get_cell_bit(jnp.int32(column), jnp.int32(0))
        move = jnp.where((ours[0] == low) & (ours[1] == high) & ((theirs[0] | theirs[1]) == 0), reply, move)
    return move.astype(jnp.int32)
