"""Run trainings that a script compares: each is a process, and its row is kept in a file of JSON lines."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from evorl.stats import MeanEstimate
from evorl.training.random_baseline import BASELINE_EPISODES
from evorl.training.records.rows import read_evaluations


def trained(options: Sequence[str]) -> tuple[dict, float]:
    """Return the last evaluation of a training, whose folder is not kept, and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        run, began = Path(folder) / "run", time.perf_counter()
        command = [sys.executable, "-m", "evorl.train", *options, f"run_dir={run}", "tensorboard=false"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(options)}\n{done.stderr[-2000:]}")
        return read_evaluations(run)[-1], time.perf_counter() - began


def is_above(returns: Sequence[float], random: Sequence[float]) -> str:
    """Return "yes" or "no": whether seeds earn more than random actions, by Welch's interval; "" below three seeds.

    Args:
        returns: Returns of the seeds.
        random: Mean return of random actions and its interval, which is 1.96 standard errors to each side.
    """
    mean, low, high = random
    more = MeanEstimate.from_scores(returns) - MeanEstimate(mean, (high - low) / 2 / 1.96, BASELINE_EPISODES - 1)
    low, high = more.interval()
    return "" if high == float("inf") else "yes" if low > 0 else "no"


def kept(path: Path | None) -> list[dict]:
    """Return the rows of a file, or an empty list if there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
    return list(map(json.loads, lines))


def keep(path: Path | None, row: dict) -> None:
    """Append a row to a file, if one is given."""
    if path:
        with path.open("a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)
