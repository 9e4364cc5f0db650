"""Out-of-distribution test set of mazes: fixed layouts and generators, each a source of levels.

The layouts are those of the comparisons in Dennis et al. 2020 (arXiv:2012.02096), Jiang et al. 2021
(arXiv:2110.02439) and Jiang et al. 2023 (arXiv:2311.12716). Crossing follows MiniGrid's rule, with exactly
five crossings.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evorl.envs.maze import levels
from evorl.envs.maze.generators import place_start_and_goal, sample_direction
from evorl.envs.maze.levels import HEADINGS, RED, Level, LevelSource
from evorl.envs.maze.maze import Maze
from evorl.errors import unknown_name_error
from evorl.types import Key

Cell = tuple[int, int]
RIGHT, LEFT = 0, 2
ANY_DIRECTION = -1


@dataclass(frozen=True)
class FixedLayout:
    """A fixed layout of walls, whose rows are hexadecimal numbers, with the highest bit at x = 0.

    The goal is sampled from `goals`. The direction is sampled if it is ANY_DIRECTION.
    """

    rows: str
    width: int
    agent: Cell
    direction: int
    goals: tuple[Cell, ...]

    default_params = None

    @property
    def height(self) -> int:
        return len(self.rows.split())

    @property
    def grid(self) -> np.ndarray:
        """Return a mask of the walls, [height, width]."""
        x = np.arange(self.width)[::-1]
        return np.array([int(row, 16) >> x & 1 for row in self.rows.split()], bool)

    def sample(self, key: Key, params: None) -> Level:
        del params
        key_direction, key_goal = jax.random.split(key)
        direction = sample_direction(key_direction) if self.direction == ANY_DIRECTION else self.direction
        goal = jnp.array(self.goals, jnp.int32)[jax.random.randint(key_goal, (), 0, len(self.goals))]
        return levels.create_level(jnp.asarray(self.grid), (self.agent, direction), goal)


@dataclass(frozen=True)
class MemoryMaze:
    """A T-junction with a red and a green tile; the clue at the start has the color of the true goal."""

    layout: FixedLayout
    clue: Cell = (0, 6)

    default_params = None

    @property
    def height(self) -> int:
        return self.layout.height

    @property
    def width(self) -> int:
        return self.layout.width

    def sample(self, key: Key, params: None) -> Level:
        """Sample which of the layout's goals, the red one and the green one in this order, is the true goal."""
        del params
        color = jax.random.bernoulli(key).astype(jnp.int32)
        cells = jnp.array(self.layout.goals, jnp.int32)
        true = jnp.where(color == RED, 0, 1)
        start, clue = (self.layout.agent, self.layout.direction), self.clue
        return levels.create_level(jnp.asarray(self.layout.grid), start, cells[true], color, cells[1 - true], clue)


@dataclass(frozen=True)
class FourRooms:
    """Four rooms of 8 x 8, with random start and goal.

    Each of the four walls between the rooms has a door at a random place.
    """

    height = 17
    width = 17
    default_params = None

    def sample(self, key: Key, params: None) -> Level:
        del params
        key_doors, key_start = jax.random.split(key)
        y, x = np.mgrid[0:17, 0:17]
        left, right, above, below = jax.random.randint(key_doors, (4,), 0, 8)
        across = (y == 8) & (x != left) & (x != 9 + right)
        down = (x == 8) & (y != above) & (y != 9 + below)
        return place_start_and_goal(key_start, across | down)


@dataclass(frozen=True)
class Crossing:
    """Walls from side to side with one opening each, on a path from the upper left to the lower right corner.

    By MiniGrid's rule, `crossings` of the columns and rows 1, 3, 5, 7 are walls. The path crosses them in a
    random order, each at a random cell of the room that it is in.
    """

    crossings: int = 5

    height = 9
    width = 9
    default_params = None

    def sample(self, key: Key, params: None) -> Level:
        del params
        key_lines, key_order, *keys = jax.random.split(key, 2 + self.crossings)
        places = np.arange(1, 9, 2)
        lines = jax.random.permutation(key_lines, np.arange(8) < self.crossings).reshape(2, 4)  # walls: columns, rows
        column, row = jnp.zeros((2, 9), bool).at[:, places].set(lines)
        grid = row[:, None] | column
        sides = jnp.sort(jnp.where(lines, places, 9))
        sides = jnp.pad(sides, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, 9)))  # room borders along x and y
        along_x = jax.random.permutation(key_order, np.arange(self.crossings) < lines[0].sum())
        room = jnp.zeros(2, jnp.int32)
        for key, crosses_column in zip(keys, along_x, strict=True):
            axis = jnp.where(crosses_column, 0, 1)
            wall, other = sides[axis, room[axis] + 1], sides[1 - axis]
            place = jax.random.randint(key, (), other[room[1 - axis]] + 1, other[room[1 - axis] + 1])
            grid = grid.at[jnp.where(crosses_column, place, wall), jnp.where(crosses_column, wall, place)].set(False)
            room = room.at[axis].add(1)
        return levels.create_level(grid, ((0, 0), RIGHT), (8, 8))


@dataclass(frozen=True)
class PerfectMaze:
    """Corridors without loops that join the cells of a lattice, by depth-first search, with random start and goal."""

    lattice: int = 7  # cells per side

    default_params = None

    @property
    def height(self) -> int:
        return 2 * self.lattice - 1

    width = height

    def sample(self, key: Key, params: None) -> Level:
        del params
        key_first, key_maze, key_start = jax.random.split(key, 3)
        size, cells = self.lattice, self.lattice**2
        preference = jax.random.uniform(key_maze, (2 * cells, 4))
        here = jax.random.randint(key_first, (), 0, cells)
        y, x = np.mgrid[0 : self.height, 0 : self.width]
        grid, visited = jnp.asarray((x % 2 == 1) | (y % 2 == 1)), jnp.zeros(cells, bool).at[here].set(True)

        def search_step(carry: tuple[Array, ...], preference: Array) -> tuple[tuple[Array, ...], None]:
            grid, visited, parent, here = carry
            cell = jnp.stack([here % size, here // size])
            beside = cell + HEADINGS
            inside = ((beside >= 0) & (beside < size)).all(-1)
            numbers = beside[:, 1] * size + beside[:, 0]
            new = inside & ~visited[numbers]
            heading = jnp.where(new, preference, -1).argmax()
            goes = new.any()
            there = jnp.where(goes, numbers[heading], parent[here])  # back to the parent if no neighbor is new
            x, y = 2 * cell + jnp.asarray(HEADINGS)[heading]
            grid = grid.at[jnp.where(goes, y, 0), jnp.where(goes, x, 0)].set(False)
            parent = parent.at[there].set(jnp.where(goes, here, parent[there]))
            return (grid, visited.at[there].set(True), parent, there), None

        carry = grid, visited, jnp.full(cells, here), here
        (grid, *_), _ = jax.lax.scan(search_step, carry, preference)
        return place_start_and_goal(key_start, grid)


def create_square_layout(rows: str, agent: Cell, direction: int, *goals: Cell) -> FixedLayout:
    """Create a square layout from its rows, which are hexadecimal numbers."""
    height = len(rows.split())
    return FixedLayout(rows, height, agent, direction, goals)


SMALL_ALLEYS = tuple((x, y) for y in (5, 7) for x in range(2, 11, 2))
LARGE_ALLEYS = tuple((x, y) for y in (8, 10) for x in range(2, 17, 2))
LEVELS: dict[str, LevelSource] = {
    "SixteenRooms": create_square_layout(
        "0248 0008 0240 176e 0200 0048 1add 0208 0240 0f6b 0248 0040 0208", (1, 1), RIGHT, (11, 11)
    ),
    "SixteenRooms2": create_square_layout(
        "0208 0048 0248 1edd 0240 0048 17df 0248 0200 1b6f 0248 0040 0248", (1, 1), ANY_DIRECTION, (11, 11)
    ),
    "Labyrinth": create_square_layout(
        "0000 0ffe 0802 0bfa 0a0a 0aea 0aaa 0aaa 088a 0ffa 0082 1ebe 0080", (0, 12), RIGHT, (6, 6)
    ),
    "LabyrinthFlipped": create_square_layout(
        "0000 0ffe 0802 0bfa 0a0a 0aea 0aaa 0aaa 0a22 0bfe 0820 0faf 0020", (12, 12), LEFT, (6, 6)
    ),
    "Labyrinth2": create_square_layout(
        "0800 0bfe 0a02 0afa 0a8a 02aa 1eaa 02ea 0a0a 0bfa 0802 0ffe 0000", (0, 0), ANY_DIRECTION, (6, 6)
    ),
    "StandardMaze": create_square_layout(
        "0084 0ef6 0800 0ff7 0010 1fbe 0120 0c6f 0522 15ba 1488 16ee 0228", (6, 0), RIGHT, (6, 12)
    ),
    "StandardMaze2": create_square_layout(
        "0284 0af1 0804 0ff7 0254 1ad4 0a16 0b72 093a 0daa 08aa 0aaa 0220", (0, 6), ANY_DIRECTION, (12, 4)
    ),
    "StandardMaze3": create_square_layout(
        "0140 0f5e 0850 03d5 1a14 02d6 0a92 0abb 08a8 0eae 08a2 0baa 0888", (3, 0), ANY_DIRECTION, (12, 6)
    ),
    "SmallCorridor": create_square_layout(
        "0000 " + "0aaa " * 5 + "0ffe " + "0aaa " * 5 + "0000", (0, 6), ANY_DIRECTION, *SMALL_ALLEYS
    ),
    "LargeCorridor": create_square_layout(
        "00000 " + "2aaaa " * 8 + "3fffe " + "2aaaa " * 8 + "00000", (0, 9), ANY_DIRECTION, *LARGE_ALLEYS
    ),
    "Memory": MemoryMaze(
        create_square_layout(
            "0050 0050 0050 0050 0050 7850 0fd0 0010 0fd0 7850 0050 0050 0050 0050 0050", (0, 7), RIGHT, (9, 5), (9, 9)
        )
    ),
    "FourRooms": FourRooms(),
    "Crossing": Crossing(),
    "PerfectMaze": PerfectMaze(7),
    "PerfectMazeMedium": PerfectMaze(10),
    "PerfectMazeXL": PerfectMaze(51),
}


@dataclass(frozen=True)
class OODLevels:
    """Source of the levels of one maze of the test set, for training on it.

    Args:
        name: Name of the maze, such as "SixteenRooms".

    Raises:
        OptionError: If the name is unknown.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in LEVELS:
            raise unknown_name_error("maze", self.name, LEVELS)

    @property
    def height(self) -> int:
        return LEVELS[self.name].height

    @property
    def width(self) -> int:
        return LEVELS[self.name].width

    @property
    def default_params(self) -> Any:
        return LEVELS[self.name].default_params

    def sample(self, key: Key, params: Any) -> Level:
        return LEVELS[self.name].sample(key, params)


def episode_step_limit(name: str) -> int:
    """Return the maximum number of steps of an episode in a maze of the test set."""
    area = (LEVELS[name].height + 2) * (LEVELS[name].width + 2)
    return {"FourRooms": 250, "Crossing": 4 * area}.get(name, 2 * area)


def create_test_mazes(like: Maze) -> dict[str, Maze]:
    """Create the environments of all mazes of the test set by name, with the observations and rewards of `like`."""
    return {
        name: replace(like, levels=source, max_episode_steps=episode_step_limit(name))
        for name, source in LEVELS.items()
    }
