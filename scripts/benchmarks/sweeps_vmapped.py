"""Compare a vmapped sweep with one process per trial: CPU seconds, and whether results are bitwise identical.

python scripts/benchmarks/sweeps_vmapped.py [--trials 32] [--env-steps 50_000] [--folder FOLDER]

The trials are PPO on CartPole by classic/ppo_cartpole, one seed each, with hyperparameters drawn at random. Both sides
begin with a warm compilation cache: one sweep and one training run before. A trial is identical if all its evaluations
are. The CPU seconds of a sweep are those of the command and of its worker.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from evorl.sweeps.store import SweepStore, get_trial_folder

SETTINGS = ["experiment=classic/ppo_cartpole", "num_seeds=1", "tensorboard=false"]


def children() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ran(*command: str) -> float:
    before = children()
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
    return children() - before


def evaluations(run: Path) -> np.ndarray:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return np.array([[row["env_steps"], row["return"]] for row in rows if row["kind"] == "evaluation"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--env-steps", type=int, default=50_000)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    settings, count = [*SETTINGS, f"env_steps={given.env_steps}"], given.trials
    sweep = ["evorl.sweep", *settings, "sampler=random", f"trials={count}", f"vmapped={count}"]
    took = {}
    for name, vectorized in (("in turn", False), ("vmapped", True)):
        for time in ("warm", "timed"):
            place = folder / name.replace(" ", "_") / time
            took[name] = ran(*sweep, f"vectorized={vectorized}".lower(), f"sweep_dir={place}")
        print(f"{name}: {took[name]:.0f} CPU seconds", flush=True)
    trials = SweepStore(folder / "vmapped" / "timed").read_trials()
    alone, found = [], []
    for place, trial in [("warm", trials[0]), *(("timed", trial) for trial in trials)]:
        run = folder / "alone" / place / str(trial.number)
        values = [f"{name}={value}" for name, value in trial.values.items()]
        alone.append(ran("evorl.train", *settings, *values, f"run_dir={run}"))
        found.append(evaluations(run))
    print(f"a process each: {sum(alone[1:]):.0f} CPU seconds")
    for name, seconds in took.items():
        runs = [get_trial_folder(folder / name.replace(" ", "_") / "timed", trial.number) for trial in trials]
        pairs = list(zip(found[1:], map(evaluations, runs), strict=True))
        same = sum(one.shape == other.shape and bool((one == other).all()) for one, other in pairs)
        ends = np.array([[one[-1, 1], other[-1, 1]] for one, other in pairs])
        print(f"{name}: {seconds / sum(alone[1:]):.2f} of them; {same} of {count} bitwise identical;", end=" ")
        print(
            f"last returns differ by {np.abs(ends[:, 0] - ends[:, 1]).mean():.1f}, mean {ends[:, 1].mean():.1f}",
            end=" ",
        )
        print(f"compared with {ends[:, 0].mean():.1f}", flush=True)


if __name__ == "__main__":
    main()
