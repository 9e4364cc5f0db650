"""Levels of the maze as data: what a designer is free to choose, one bit for each cell."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int, UInt32
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.errors import require
from evorl.types import Key

GREEN, RED = 1, 0  # MiniGrid's numbers
ABSENT = -1000  # the x and y of what a level does not have, out of every sight
HEADINGS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.int32)  # (x, y) of right, down, left, up
WORD_BITS = 32
AGENT_SYMBOLS = ">v<^"


@struct.dataclass
class Level:
    """A rectangle of free cells and walls, inside walls, with a start and a goal. Cells are (x, y), y downwards.

    A distractor ends the episode without a reward; it has the colour, green or red, that the goal has not. A clue shows
    the goal's colour. Leaves may lead with further axes. A level may have a step limit of its own.
    """

    walls: UInt32[Array, "height words"]  # bit x % 32 of word x // 32 is cell x of the row
    agent: Int[Array, " 2"]  # where it starts
    direction: Int[Array, ""]  # 0 right, 1 down, 2 left, 3 up
    goal: Int[Array, " 2"]
    color: Int[Array, ""]  # of the goal
    distractor: Int[Array, " 2"]
    clue: Int[Array, " 2"]
    width: int = struct.field(pytree_node=False)
    step_limit: Int[Array, ""] | None = None  # steps of an episode; None for the environment's own

    @property
    def height(self) -> int:
        return self.walls.shape[-2]

    @property
    def grid(self) -> Bool[Array, "*batch height width"]:
        """Where walls are."""
        return unpack(jnp.asarray(self.walls), self.width)


def create_level(
    grid: Bool[Array, "height width"], start: tuple[Any, Any], goal: Any, color: Any = GREEN,
    distractor: Any = (ABSENT, ABSENT), clue: Any = (ABSENT, ABSENT),
) -> Level:  # fmt: skip
    """A level from where walls are, and the agent's cell and direction; every position is (x, y)."""
    cells = [jnp.asarray(x, jnp.int32) for x in (*start, goal, color, distractor, clue)]
    return Level(pack(jnp.asarray(grid)), *cells, width=grid.shape[-1])


def pack(grid: Bool[Array, "*batch height width"]) -> UInt32[Array, "*batch height words"]:
    """Cells as bits."""
    width = grid.shape[-1]
    words = -(-width // WORD_BITS)
    padded = jnp.pad(grid, [(0, 0)] * (grid.ndim - 1) + [(0, words * WORD_BITS - width)])
    bits = padded.reshape(*grid.shape[:-1], words, WORD_BITS).astype(jnp.uint32)
    return (bits << jnp.arange(WORD_BITS, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)


def unpack(bits: UInt32[Array, "*batch height words"], width: int) -> Bool[Array, "*batch height width"]:
    """Bits as cells."""
    x = np.arange(width)
    return ((bits[..., x // WORD_BITS] >> jnp.asarray(x % WORD_BITS, jnp.uint32)) & 1).astype(bool)


def is_wall(level: Level, x: Int[Array, "*cells"], y: Int[Array, "*cells"]) -> Bool[Array, "*cells"]:
    """Whether cells are walls, of this level or around it."""
    inside = (x >= 0) & (x < level.width) & (y >= 0) & (y < level.height)
    words = level.walls.shape[-1]
    word = level.walls.reshape(-1)[y * words + x // WORD_BITS if words > 1 else y]
    return ~inside | ((word >> (x % WORD_BITS).astype(jnp.uint32)) & 1).astype(bool)


def is_at(cell: Int[Array, "2"], x: Int[Array, "*cells"], y: Int[Array, "*cells"]) -> Bool[Array, "*cells"]:
    """Whether cells are this one."""
    return (x == cell[0]) & (y == cell[1])


def from_str(text: str) -> Level:
    """A level from its drawing, as to_str makes it; raises OptionError where that is none."""
    rows = [line.strip() for line in text.split()]
    width = len(rows[0]) if rows else 0
    require(width > 0 and all(len(row) == width for row in rows), "level", text, "rows must have one length")
    found: dict[str, tuple[int, int]] = {}
    for y, row in enumerate(rows):
        for x, sign in enumerate(row):
            kind = "agent" if sign in AGENT_SYMBOLS else "goal" if sign in "GR" else sign
            require(sign in ".#GRdc" + AGENT_SYMBOLS, "level", sign, f"a cell is one of .#GRdc{AGENT_SYMBOLS}")
            require(sign in ".#" or kind not in found, "level", sign, f"has more than one {kind}")
            found[kind] = (x, y)
    for kind in ("agent", "goal"):
        require(kind in found, "level", text, f"has no {kind}")
    (x, y), goal = found["agent"], found["goal"]
    grid = jnp.array([[sign == "#" for sign in row] for row in rows])
    color = GREEN if rows[goal[1]][goal[0]] == "G" else RED
    nowhere = (ABSENT, ABSENT)
    start = (x, y), AGENT_SYMBOLS.index(rows[y][x])
    return create_level(grid, start, goal, color, found.get("d", nowhere), found.get("c", nowhere))


def to_str(level: Level) -> str:
    """A drawing: # wall, > v < ^ the start, G a green goal, R a red one, d the distractor, c the clue."""
    signs = np.where(np.asarray(level.grid), "#", ".")
    sign = AGENT_SYMBOLS[int(level.direction)]
    marks = ((level.clue, "c"), (level.distractor, "d"), (level.goal, "RG"[int(level.color)]), (level.agent, sign))
    for cell, mark in marks:
        x, y = np.asarray(cell)
        if x != ABSENT:
            signs[y, x] = mark
    return "\n".join("".join(row) for row in signs)


def pad(level: Level, height: int, width: int) -> Level:
    """The same level in the upper left corner of a larger rectangle of walls."""
    larger = height >= level.height and width >= level.width
    require(larger, "pad", (height, width), f"must be at least {(level.height, level.width)}")
    rest = ((0, height - level.height), (0, width - level.width))
    grid = jnp.pad(level.grid, rest, constant_values=True)
    return replace(level, walls=pack(grid), width=width)


def equal(a: Level, b: Level) -> Bool[Array, ""]:
    """Whether two levels of one size are the same in every bit."""
    return jnp.stack([(x == y).all() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]).all()


def hash_level(level: Level) -> UInt32[Array, "2"]:
    """A hash of 64 bits."""
    return tree.hash_tree(level)


@runtime_checkable
class LevelSource(Protocol):
    """Where levels come from: one size, and a draw of a level from params."""

    @property
    def height(self) -> int:
        """Rows of a level, its outer walls left out."""
        ...

    @property
    def width(self) -> int:
        """Columns of a level, its outer walls left out."""
        ...

    @property
    def default_params(self) -> Any:
        """The numbers that levels are drawn by, which may differ between runs."""
        ...

    def sample(self, key: Key, params: Any) -> Level:
        """A level."""
        ...
