"""Rows: what a training records of every chunk and every evaluation."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from evorl import stats
from evorl.errors import OptionError
from evorl.metrics import COUNTS, ERROR, MEMBERS, OF_EPISODES
from evorl.training.progress import Progress
from evorl.training.records import files

SECONDS = ("compile_seconds", "evaluation_seconds", "host_seconds", "idle_seconds")

SPREAD = {"min": np.min, "median": np.median, "max": np.max}

Row = dict[str, Any]


def evaluations(run_dir: Path) -> list[Row]:
    """The evaluations that a run has recorded so far, none where it has no rows; raises OptionError."""
    path = run_dir / "metrics.jsonl"
    try:
        lines = files.read(path).splitlines() if path.is_file() else []
        return [row for row in map(json.loads, lines) if row["kind"] == "evaluation"]
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise OptionError(f"run={run_dir}: its metrics.jsonl cannot be read") from error


def per_seed(values: np.ndarray, num_seeds: int) -> list[int]:
    """Counts [seeds, members...] or [members...] of one seed, summed over members."""
    return [int(x) for x in np.asarray(values).reshape(num_seeds, -1).sum(1)]


def row_of(progress: Progress, metrics: dict[str, np.ndarray], kind: str, duration: float) -> Row:
    """A record that JSON can hold: totals and metrics of the runs together, and apart where there are several.

    Means are over the runs that have not diverged, those of episodes over the runs in which one has ended. What members
    have of their own is under "members", by name [seeds][generations][n]; where it is real, the row has its spread too.
    """
    row: Row = {"kind": kind, "iteration": progress.iteration, "seconds": progress.seconds, "duration": duration}
    row |= {name: getattr(progress, name) for name in SECONDS}
    totals, num_seeds = dict(progress.totals), len(progress.diverged)
    apart: dict[str, list[float]] = {}
    for name, values in metrics.items():
        if name.startswith(MEMBERS):
            name, values = name.removeprefix(MEMBERS), of_members(np.asarray(values), num_seeds, kind)
            row.setdefault("members", {})[name] = values.tolist()
            if np.issubdtype(values.dtype, np.floating):
                apart |= spread(name, values)
        elif name not in COUNTS:
            apart[name] = np.asarray(values, np.float64).reshape(num_seeds, -1).mean(1).tolist()
    row |= {name: progress.mean(name) for name in totals}
    episodes = per_seed(metrics["episodes"], num_seeds) if "episodes" in metrics else [1] * num_seeds
    whole = [x is None for x in progress.diverged]
    for name, values in apart.items():
        ended = episodes if name in OF_EPISODES else [1] * num_seeds
        counted = [x for x, n, sound in zip(values, ended, whole, strict=True) if n and (sound or not any(whole))]
        row[name] = math.fsum(counted) / max(len(counted), 1)
    row["diverged"] = num_seeds - sum(whole)
    if num_seeds > 1:
        row["seeds"] = totals | apart | {"diverged": [int(not sound) for sound in whole]}
    return row


def interval(row: Row) -> tuple[float, float]:
    """The 95 % interval of a row's return: over its seeds, or of one from the error of its mean, infinite without."""
    seeds = [value for value in row.get("seeds", {}).get("return", []) if math.isfinite(value)]
    if len(seeds) > 1:
        return stats.interval(seeds)
    reach = 1.96 * row.get(ERROR, math.inf)
    return row["return"] - reach, row["return"] + reach


def of_members(values: np.ndarray, num_seeds: int, kind: str) -> np.ndarray:
    """Metrics [generations, (seeds), n...] of a chunk, or [(seeds), n...] of an evaluation, which is one generation.

    As [seeds, generations, n...].
    """
    values = values if kind == "train" else values[None]
    return np.swapaxes(values, 0, 1) if num_seeds > 1 else values[None]


def spread(name: str, values: np.ndarray) -> dict[str, list[float]]:
    """NAME_min, NAME_median and NAME_max over the members of each seed's last generation, but for those not finite."""
    last = [members[np.isfinite(members)] for members in values[:, -1]]
    return {f"{name}_{end}": [float(of(x)) if x.size else math.nan for x in last] for end, of in SPREAD.items()}
