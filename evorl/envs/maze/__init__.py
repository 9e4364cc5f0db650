"""The maze: levels as data, where they come from, what one can do to them, and the environment."""

from evorl.envs.maze import edits, ood, paths
from evorl.envs.maze.draw import render_level, render_level_grid
from evorl.envs.maze.editor import MazeEditor
from evorl.envs.maze.generators import LevelTable, RandomWalls
from evorl.envs.maze.levels import Level, create_level, equal, from_str, hash_level, pad, to_str
from evorl.envs.maze.maze import LevelSource, Maze

__all__ = [
    "Level",
    "LevelSource",
    "LevelTable",
    "Maze",
    "MazeEditor",
    "RandomWalls",
    "create_level",
    "edits",
    "equal",
    "from_str",
    "hash_level",
    "ood",
    "pad",
    "paths",
    "render_level",
    "render_level_grid",
    "to_str",
]
