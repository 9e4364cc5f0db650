"""Evaluate curricula of mazes: compare runs on the same held-out levels, and describe the levels in their buffers.

python scripts/learning/held_out.py runs/stages/*maze*                     1,000 levels of 7 x 7 with 20 draws
python scripts/learning/held_out.py RUN RUN --size 13 --draws 60

Levels are drawn with --draws walls, are solvable, and were not seen by any run. The table has, for each seed's last
policy:
  - the rate of levels solved with greedy actions, of all levels and of the tenth with the longest paths, and with
    sampled actions;
  - the solved rate on the worst a percent of the levels: ten episodes of each level choose them, and ten others
    measure them (risk, arXiv:2408.15099);
  - kept: the mean shortest path and number of walls of the replayed levels, weighted by the replay probability.
Intervals are over seeds.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import stats
from evorl.envs.maze import Maze, RandomWalls, paths
from evorl.training.runs import RunCheckpoint, restore_run
from evorl.training.suites.level_episodes import run_on_levels
from evorl.training.suites.risk import compute_risk_curve
from evorl.ued import PLR

WORST = (1, 5, 10, 20, 50, 100)
ATTEMPTS = 10


def held_out(size: int, draws: int, count: int) -> Any:
    """Return solvable levels, always the same for a size, leaves [count, ...]."""
    env = Maze(RandomWalls(size, size, draws, draws, solvable=True))
    keys = jax.random.split(jax.random.key(20261124), count)
    return jax.jit(jax.vmap(env.sample_level, (0, None)))(keys, env.default_params)


def rates(workflow: Any, levels: Any) -> Any:
    """Return a function (state, key) -> (solved greedily [n], solved rate with sampled actions in two sets [2, n])."""
    several = jax.tree.map(lambda x: jnp.repeat(x, 2 * ATTEMPTS, axis=0), levels)

    @jax.jit
    def measured(state: Any, key: Any) -> tuple[Any, Any]:
        key_greedy, key_sampled = jax.random.split(key)
        greedy = run_on_levels(workflow, state, levels, False, key_greedy).returns > 0
        sampled = run_on_levels(workflow, state, several, True, key_sampled).returns > 0
        return greedy, sampled.reshape(-1, 2, ATTEMPTS).mean(-1).T

    return measured


def kept(workflow: Any, state: Any) -> tuple[float, float]:
    """Return the mean path length and the mean number of walls of the replayed levels."""
    if not isinstance(workflow, PLR):
        return np.nan, np.nan
    chances = state.buffer.replay_probabilities(workflow.bound(state).curation)
    length = jax.vmap(paths.path_length)(state.buffer.levels)
    walls = state.buffer.levels.grid.sum((1, 2))
    found = chances * (length > 0)
    return float((found * length).sum() / found.sum()), float((chances * walls).sum())


def numbers(run: RunCheckpoint, levels: Any) -> dict[str, np.ndarray]:
    """Return the figures of a run by name, each with one value per seed."""
    length = np.asarray(jax.vmap(paths.path_length)(levels))
    longest = np.argsort(-length, kind="stable")[: len(length) // 10]
    first, seeds = run.cfg["seed"], run.cfg["num_seeds"]
    workflow, _ = run.select_policy(first, None)
    measured, rows = rates(workflow, levels), []
    for seed in range(first, first + seeds):
        state = run.select_policy(seed, None)[1]
        greedy, (ranked, other) = jax.device_get(measured(state, jax.random.key(seed)))
        worst = {
            f"worst {a} %": value for a, value in zip(WORST, compute_risk_curve(ranked, other, WORST), strict=True)
        }
        path, walls = kept(workflow, state)
        solved = {"solved": greedy.mean(), "longest tenth": greedy[longest].mean(), "sampled": other.mean()}
        rows.append(solved | worst | {"kept: path": path, "kept: walls": walls})
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--size", type=int, default=7)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--levels", type=int, default=1000)
    given = parser.parse_args()
    levels = held_out(given.size, given.draws, given.levels)
    length = np.asarray(jax.vmap(paths.path_length)(levels))
    print(f"{given.levels} levels of {given.size} x {given.size}: paths of {length.mean():.1f}, at most {length.max()}")
    for i, path in enumerate(given.runs):
        found = numbers(restore_run(path, "run", "last"), levels)
        if not i:
            print(f"| run | seeds | {' | '.join(found)} |\n|{'---|' * (2 + len(found))}")
        cells = [
            f"{stats.MeanEstimate.from_scores(values):.2f}" if np.isfinite(values).all() else ""
            for values in found.values()
        ]
        print(f"| {path.name} | {len(found['solved'])} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
