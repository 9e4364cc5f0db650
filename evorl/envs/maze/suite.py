"""Out-of-distribution test set as data: levels of several mazes in one size, each with its own step limit."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from evorl import tree
from evorl.envs.maze.levels import Level, LevelSource, pad
from evorl.envs.maze.maze import Maze
from evorl.envs.maze.ood import ANY_DIRECTION, LEVELS, RIGHT, FixedLayout, episode_step_limit
from evorl.types import Key

SUITES = ("ood", "minimax")
LARGE_MAZE = "PerfectMazeXL"
SMALL_MAZES = tuple(name for name in LEVELS if name != LARGE_MAZE)  # up to 19 x 19
AS_TRAINED = "as trained"


def get_level_source(name: str, suite: str) -> LevelSource:
    """Return the source of the levels of a maze.

    In the suite "minimax", the agent looks to the right in fixed layouts with any direction. The generators
    of minimax sample directions as ours do (facebookresearch/minimax, envs/maze/maze_ood.py).
    """
    source = LEVELS[name]
    if suite == "minimax" and isinstance(source, FixedLayout) and source.direction == ANY_DIRECTION:
        return FixedLayout(source.rows, source.width, source.agent, RIGHT, source.goals)
    return source


def sample_test_levels(key: Key, names: Sequence[str], n: int, suite: str, env: Maze, params: object) -> Level:
    """Sample n levels of each of the named mazes, leaves [names, n, ...], padded with walls to the largest size.

    The levels of a maze do not depend on the other names. AS_TRAINED is the source of env, with its params.
    """
    own = {AS_TRAINED: (env.levels, params, env.max_episode_steps)}
    sources = {name: get_level_source(name, suite) for name in names if name not in own}
    mazes = own | {name: (source, source.default_params, episode_step_limit(name)) for name, source in sources.items()}
    height = max(mazes[name][0].height for name in names)
    width = max(mazes[name][0].width for name in names)

    def sample_maze(name: str) -> Level:
        source, params, steps = mazes[name]
        keys = jax.random.split(jax.random.fold_in(key, (AS_TRAINED, *LEVELS).index(name)), n)
        levels = jax.vmap(lambda key: pad(source.sample(key, params), height, width))(keys)
        return replace(levels, step_limit=jnp.full(n, steps, jnp.int32))

    return tree.stack([sample_maze(name) for name in names])
