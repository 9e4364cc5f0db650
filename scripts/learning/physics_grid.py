"""Evaluate runs on CartPoles of different poles: greedy returns on a grid of lengths and masses.

python scripts/learning/physics_grid.py runs/stages/*physics     10 x 10 levels, 10 episodes on each

Runs are those of `stages.py physics`, trained on all poles. The grid has equal steps on a logarithmic scale, ends
included. The table has three figures for the greedy last policies:
  - the mean return of all levels;
  - the mean return of the tenth of the levels that is the worst, selected with other episodes of the same number;
  - the share of levels with a mean return of 475 or more.
Intervals are over seeds. A table for each run follows, with the mean return of each level over seeds.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import stats
from evorl.envs.physics import Physics
from evorl.training.runs import RunCheckpoint, restore_run
from evorl.training.suites.level_episodes import run_on_levels
from evorl.training.suites.risk import compute_risk_curve

WORST = 10  # percent
SOLVED = 475


def axis(prior: Any, size: int) -> np.ndarray:
    """Return `size` numbers at equal distances in the range of a prior, ends included."""
    return np.asarray([prior.decode(jnp.float32(u)) for u in np.linspace(0, 1, size)])


def grid(env: Physics, size: int) -> tuple[list[np.ndarray], Any]:
    """Return the numbers along each axis, and the levels, leaves [size ** axes, ...].

    The first number varies slowest.
    """
    axes = [axis(prior, size) for prior in env.ranges.values()]
    points = [dict(zip(env.ranges, numbers, strict=True)) for numbers in itertools.product(*axes)]
    return axes, jnp.stack([env.encode_level(numbers) for numbers in points])


def returns(run: RunCheckpoint, levels: Any, episodes: int) -> np.ndarray:
    """Return the mean greedy returns of each seed in two sets of episodes, [seeds, 2, levels]."""
    first, seeds = run.cfg["seed"], run.cfg["num_seeds"]
    workflow, _ = run.select_policy(first, None)
    several = jnp.repeat(levels, 2 * episodes, axis=0)

    @jax.jit
    def measured(state: Any, key: Any) -> Any:
        found = run_on_levels(workflow, state, several, False, key).returns
        return found.reshape(len(levels), 2, episodes).mean(-1).T

    return np.stack([measured(run.select_policy(first + i, None)[1], jax.random.key(first + i)) for i in range(seeds)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--size", type=int, default=10, help="levels along each number")
    parser.add_argument("--episodes", type=int, default=10, help="on each level, and as many that choose the worst")
    given = parser.parse_args()
    print(f"| run | seeds | mean | worst {WORST} % | share at {SOLVED} or more |\n|{'---|' * 5}", flush=True)
    tables = []
    for path in given.runs:
        run = restore_run(path, "run", "last")
        env = run.select_policy(run.cfg["seed"], None)[0].env
        if not isinstance(env, Physics):
            parser.error(f"{path}: was not trained on env=physics")
        axes, levels = grid(env, given.size)
        found = returns(run, levels, given.episodes)
        worst = np.array([compute_risk_curve(ranked, other, (WORST,))[0] for ranked, other in found])
        numbers = found[:, 1].mean(-1), worst, 100 * (found[:, 1] >= SOLVED).mean(-1)
        cells = [f"{stats.MeanEstimate.from_scores(x):.0f}" for x in numbers]
        print(f"| {path.name} | {len(found)} | {' | '.join(cells)} % |", flush=True)
        tables.append((path.name, list(env.ranges), axes, found[:, 1].mean(0)))
    for name, names, axes, mean in tables:
        if len(names) == 2:
            print(f"\n| {name}: {names[0]}, across {names[1]} | " + " | ".join(f"{x:.2f}" for x in axes[1]) + " |")
            print(f"|{'---|' * (1 + len(axes[1]))}")
            for number, row in zip(axes[0], mean.reshape(len(axes[0]), -1), strict=True):
                print(f"| {number:.2f} | " + " | ".join(f"{x:.0f}" for x in row) + " |")


if __name__ == "__main__":
    main()
