"""Train the tuned experiments, eight seeds each in one program, and print their final returns.

python scripts/learning/experiments.py                                   all of them
python scripts/learning/experiments.py classic/ppo_cartpole brax/sac_inverted_pendulum

The number of steps is set in the experiment's file. After the last step, the return of every seed is the mean of 128
greedy episodes on fresh starts. The table has the mean over the seeds with its 95 % interval, the interquartile mean
(Agarwal et al. 2021, arXiv:2108.13264), the worst seed, the goal, the wall seconds of the run, and the part of them
spent compiling.
"""

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
import json_rows

from evorl import stats
from evorl.training.records.rows import read_evaluations

GOALS = {"cartpole": 475, "acrobot": -90, "inverted_pendulum": 950, "pendulum": -200}
EXPERIMENTS = [
    *(f"classic/{agent}_cartpole" for agent in ("ppo", "a2c", "impala", "dqn")),
    *(f"classic/{agent}_acrobot" for agent in ("ppo", "a2c", "dqn")),
    *(f"classic/{agent}_pendulum" for agent in ("ppo", "a2c", "ddpg", "td3", "sac")),
    *(f"classic/{agent}_cartpole" for agent in ("openes", "low_rank_es", "cma_es", "ars", "cso", "ga")),
    *(f"classic/{agent}_{env}" for agent in ("openes", "low_rank_es", "cma_es") for env in ("acrobot", "pendulum")),
    *(f"brax/{agent}_inverted_pendulum" for agent in ("ppo", "a2c", "td3", "sac", "openes", "cma_es", "cemrl", "erl")),
]


def machine() -> str:
    """Return today's date and a description of this machine."""
    where = f"{platform.machine()}, {os.cpu_count()} cores, {jax.devices()[0].platform}, jax {jax.__version__}"
    return f"{datetime.date.today()}, {where}"


def train(experiment: str, options: list[str]) -> dict:
    """Train an experiment, and return the row of the evaluation after the last step."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        fixed = [f"experiment={experiment}", f"run_dir={run}", "evaluations=1", "tensorboard=false"]
        subprocess.run([sys.executable, "-m", "evorl.train", *fixed, *options], check=True, stdout=subprocess.DEVNULL)
        return read_evaluations(run)[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", help="by default all that have a goal")
    parser.add_argument("--option", action="append", default=[], help="of python -m evorl.train")
    parser.add_argument(
        "--rows", type=Path, help="JSON lines that are kept; rows with the same options are not run again"
    )
    arguments = parser.parse_args()
    recorded = json_rows.read_rows(arguments.rows, "experiment", "seeds") if arguments.rows else []
    kept = {row["experiment"]: row for row in recorded if row.get("options", []) == arguments.option}
    print(f"{machine()}\n")
    print(
        "| experiment | date | steps per seed | mean of 8 seeds [95 %] | IQM | worst seed | goal | seconds | compile |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for experiment in arguments.experiments or EXPERIMENTS:
        row = kept.get(experiment)
        if row is None:
            row = {"experiment": experiment, "options": arguments.option, "date": f"{datetime.date.today()}"}
            row |= train(experiment, arguments.option)
            if arguments.rows:
                json_rows.append_row(arguments.rows, row)
        returns = np.asarray(row["seeds"]["return"])
        goal = next((goal for env, goal in GOALS.items() if experiment.endswith(f"_{env}")), "")
        cells = [
            " ".join([experiment, *arguments.option]),
            row["date"],
            f"{row['env_steps']:,}",
            f"{stats.MeanEstimate.from_scores(returns):.1f}",
            f"{stats.iqm(returns):.1f}",
        ]
        cells += [f"{returns.min():.1f}", str(goal), f"{row['seconds']:.0f}", f"{row['compile_seconds']:.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
