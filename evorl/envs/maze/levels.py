"""Levels of the maze as data, with one bit per cell."""

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

GREEN, RED = 1, 0  # MiniGrid's codes of colors
ABSENT = -1000  # x and y of an object that a level does not have, outside of any view
HEADINGS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.int32)  # (x, y) of the directions right, down, left, up
WORD_BITS = 32
AGENT_SYMBOLS = ">v<^"


@struct.dataclass
class Level:
    """A maze: a rectangle of free cells and walls, surrounded by walls, with a start and a goal.

    Cells are (x, y), with y pointing down. An object that a level does not have is at (ABSENT, ABSENT).
    Reaching the distractor ends the episode without a reward; it has the other color, green or red, than the
    goal. The clue has the color of the goal. Leaves may have leading batch axes.

    Args:
        walls: Walls as bits, uint32 [height, words]; bit x % 32 of word x // 32 is cell x of the row.
        agent: Cell in which the agent starts, [2].
        direction: Initial direction of the agent, 0 for right, 1 down, 2 left, 3 up, [].
        goal: Cell of the goal, [2].
        color: Color of the goal, GREEN or RED, [].
        distractor: Cell of the distractor, [2].
        clue: Cell of the clue, [2].
        width: Number of columns.
        step_limit: Steps after which an episode is truncated, []; None for the limit of the environment.
    """

    walls: UInt32[Array, "height words"]
    agent: Int[Array, " 2"]
    direction: Int[Array, ""]
    goal: Int[Array, " 2"]
    color: Int[Array, ""]
    distractor: Int[Array, " 2"]
    clue: Int[Array, " 2"]
    width: int = struct.field(pytree_node=False)
    step_limit: Int[Array, ""] | None = None

    @property
    def height(self) -> int:
        """Return the number of rows."""
        return self.walls.shape[-2]

    @property
    def grid(self) -> Bool[Array, "*batch height width"]:
        """Return a mask of the walls, [*batch, height, width]."""
        return unpack(jnp.asarray(self.walls), self.width)


def create_level(
    grid: Bool[Array, "height width"], start: tuple[Any, Any], goal: Any, color: Any = GREEN,
    distractor: Any = (ABSENT, ABSENT), clue: Any = (ABSENT, ABSENT),
) -> Level:  # fmt: skip
    """Create a level from a mask of its walls.

    Args:
        grid: Mask of the walls, [height, width].
        start: Cell (x, y) in which the agent starts, and its direction.
        goal: Cell of the goal.
        color: Color of the goal, GREEN or RED.
        distractor: Cell of the distractor; (ABSENT, ABSENT) for none.
        clue: Cell of the clue; (ABSENT, ABSENT) for none.
    """
    cells = [jnp.asarray(x, jnp.int32) for x in (*start, goal, color, distractor, clue)]
    return Level(pack(jnp.asarray(grid)), *cells, width=grid.shape[-1])


def pack(grid: Bool[Array, "*batch height width"]) -> UInt32[Array, "*batch height words"]:
    """Pack a mask of cells into bits."""
    width = grid.shape[-1]
    words = -(-width // WORD_BITS)
    padded = jnp.pad(grid, [(0, 0)] * (grid.ndim - 1) + [(0, words * WORD_BITS - width)])
    bits = padded.reshape(*grid.shape[:-1], words, WORD_BITS).astype(jnp.uint32)
    return (bits << jnp.arange(WORD_BITS, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)


def unpack(bits: UInt32[Array, "*batch height words"], width: int) -> Bool[Array, "*batch height width"]:
    """Unpack bits into a mask of cells."""
    x = np.arange(width)
    return ((bits[..., x // WORD_BITS] >> jnp.asarray(x % WORD_BITS, jnp.uint32)) & 1).astype(bool)


def is_wall(level: Level, x: Int[Array, "*cells"], y: Int[Array, "*cells"]) -> Bool[Array, "*cells"]:
    """Return whether cells are walls, inside the level or around it."""
    inside = (x >= 0) & (x < level.width) & (y >= 0) & (y < level.height)
    words = level.walls.shape[-1]
    word = level.walls.reshape(-1)[y * words + x // WORD_BITS if words > 1 else y]
    return ~inside | ((word >> (x % WORD_BITS).astype(jnp.uint32)) & 1).astype(bool)


def is_at(cell: Int[Array, "2"], x: Int[Array, "*cells"], y: Int[Array, "*cells"]) -> Bool[Array, "*cells"]:
    """Return a mask of the cells that are this one."""
    return (x == cell[0]) & (y == cell[1])


def from_str(text: str) -> Level:
    """Create a level from a drawing, the inverse of `to_str`.

    Args:
        text: Drawing, one line for each row.

    Returns:
        The level.

    Raises:
        OptionError: If the text is not a drawing of a level.
    """
    rows = [line.strip() for line in text.split()]
    width = len(rows[0]) if rows else 0
    require(width > 0 and all(len(row) == width for row in rows), "level", text, "all rows must have the same length")
    found: dict[str, tuple[int, int]] = {}
    for y, row in enumerate(rows):
        for x, sign in enumerate(row):
            kind = "agent" if sign in AGENT_SYMBOLS else "goal" if sign in "GR" else sign
            require(sign in ".#GRdc" + AGENT_SYMBOLS, "level", sign, f"a cell must be one of .#GRdc{AGENT_SYMBOLS}")
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
    """Draw a level as text: # wall, > v < ^ start, G green goal, R red goal, d distractor, c clue, . free cell.

    Args:
        level: Level, without batch axes.

    Returns:
        Drawing, one line for each row.
    """
    signs = np.where(np.asarray(level.grid), "#", ".")
    sign = AGENT_SYMBOLS[int(level.direction)]
    marks = ((level.clue, "c"), (level.distractor, "d"), (level.goal, "RG"[int(level.color)]), (level.agent, sign))
    for cell, mark in marks:
        x, y = np.asarray(cell)
        if x != ABSENT:
            signs[y, x] = mark
    return "\n".join("".join(row) for row in signs)


def pad(level: Level, height: int, width: int) -> Level:
    """Return the level in the upper left corner of a larger rectangle of walls.

    Args:
        level: Level, without batch axes.
        height: New number of rows.
        width: New number of columns.

    Returns:
        The padded level.

    Raises:
        OptionError: If the new size is smaller than the level.
    """
    larger = height >= level.height and width >= level.width
    require(larger, "pad", (height, width), f"must be at least {(level.height, level.width)}")
    rest = ((0, height - level.height), (0, width - level.width))
    grid = jnp.pad(level.grid, rest, constant_values=True)
    return replace(level, walls=pack(grid), width=width)


def equal(a: Level, b: Level) -> Bool[Array, ""]:
    """Return whether two levels of one size are equal in all leaves, bool [].

    Args:
        a: A level.
        b: Another level.
    """
    return jnp.stack([(x == y).all() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]).all()


def hash_level(level: Level) -> UInt32[Array, "2"]:
    """Return a 64-bit hash of a level, uint32 [2].

    Args:
        level: Level.
    """
    return tree.hash_tree(level)


@runtime_checkable
class LevelSource(Protocol):
    """Protocol of a source of levels of one size, which samples a level from params."""

    @property
    def height(self) -> int:
        """Return the number of rows of a level, without its outer walls."""
        ...

    @property
    def width(self) -> int:
        """Return the number of columns of a level, without its outer walls."""
        ...

    @property
    def default_params(self) -> Any:
        """Return the default parameters of the distribution of levels, which may differ between runs."""
        ...

    def sample(self, key: Key, params: Any) -> Level:
        """Sample a level.

        Args:
            key: Random key.
            params: Parameters, like `default_params`.

        Returns:
            The level.
        """
        ...
