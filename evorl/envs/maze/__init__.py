"""The maze: levels as data, where they come from, what one can do to them, and the environment."""

from evorl.envs.maze import edits, ood, paths
from evorl.envs.maze.draw import picture, strip
from evorl.envs.maze.editor import MazeEditor
from evorl.envs.maze.generators import RandomWalls, Table
from evorl.envs.maze.levels import Level, equal, fingerprint, from_str, level, pad, to_str
from evorl.envs.maze.maze import Levels, Maze

__all__ = [
    "Level", "Levels", "Maze", "MazeEditor", "RandomWalls", "Table", "edits", "equal", "fingerprint", "from_str",
    "level", "ood", "pad", "paths", "picture", "strip", "to_str",
]  # fmt: skip
