"""Mazes: levels, generators and edits of levels, and the environments that play them."""

from evorl.envs.maze import edits as edits
from evorl.envs.maze import ood as ood
from evorl.envs.maze import paths as paths
from evorl.envs.maze.draw import render_level as render_level
from evorl.envs.maze.draw import render_level_grid as render_level_grid
from evorl.envs.maze.editor import MazeEditor as MazeEditor
from evorl.envs.maze.generators import LevelTable as LevelTable
from evorl.envs.maze.generators import RandomWalls as RandomWalls
from evorl.envs.maze.levels import Level as Level
from evorl.envs.maze.levels import LevelSource as LevelSource
from evorl.envs.maze.levels import create_level as create_level
from evorl.envs.maze.levels import equal as equal
from evorl.envs.maze.levels import from_str as from_str
from evorl.envs.maze.levels import hash_level as hash_level
from evorl.envs.maze.levels import pad as pad
from evorl.envs.maze.levels import to_str as to_str
from evorl.envs.maze.maze import Maze as Maze
from evorl.envs.maze.ood import OODLevels as OODLevels
from evorl.envs.maze.point_maze import PointMaze as PointMaze
