"""Rows: what a training records of every chunk and every evaluation."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evorl import stats
from evorl.errors import OptionError
from evorl.metrics import COUNTS, EPISODE_MEANS, MEMBERS_PREFIX, RETURN_ERROR
from evorl.training.progress import KINDS, Progress
from evorl.training.records import files

JSON_LINES = "metrics.jsonl"
CONTAINER_KEYS = ("seeds", "members")  # what a row holds beside numbers and its kind
MEMBER_AXES = 3  # of members' values: seeds, generations, members
TIME_FIELDS = ("compile_seconds", "evaluation_seconds", "host_seconds", "idle_seconds")

MEMBER_STATISTICS = {"min": np.min, "median": np.median, "max": np.max}

Row = dict[str, Any]


class RunRows(NamedTuple):
    """The rows that a run has recorded so far, and what is wrong with those that are left out, or an empty string."""

    rows: list[Row]
    damage: str


def read_rows(run_dir: Path, kind: str) -> RunRows:
    """Read the rows of a run, of which one that is damaged is left out.

    Args:
        run_dir: of a run; it need not have rows yet.
        kind: of the rows, "train" or "evaluation".

    Returns:
        The rows in their order, with NaN for null.

    Raises:
        OptionError: where the file cannot be read.
    """
    path, rows, damaged, count = run_dir / JSON_LINES, list[Row](), list[int](), 0
    if not path.exists():
        return RunRows(rows, "")
    try:
        for count, line in enumerate(files.read_lines(path), 1):
            row = _parse_row(line)
            if row is None or (row["kind"] == kind and rows and _get_shape(row) != _get_shape(rows[0])):
                damaged.append(count)
            elif row["kind"] == kind:
                rows.append(row)
    except OSError as error:
        raise OptionError(f"run={run_dir}: its {JSON_LINES} cannot be read: {error.strerror}") from error
    if not damaged:
        return RunRows(rows, "")
    told = f"{len(damaged)} of {count} lines of its {JSON_LINES} are damaged, the first is line {damaged[0]}"
    return RunRows(rows, f"run={run_dir}: {told}")


def read_evaluations(run_dir: Path) -> list[Row]:
    """Return the evaluations that a run has recorded so far, none where it has no rows.

    Raises:
        OptionError: where one is damaged.
    """
    found = read_rows(run_dir, "evaluation")
    if found.damage:
        raise OptionError(found.damage)
    return found.rows


def _parse_row(line: bytes) -> Row | None:
    """Return a row of JSON with NaN for null, or None where it is not one that make_row gives."""
    try:
        found = json.loads(line)
        row: Row = {
            name: _parse_numbers(value) for name, value in found.items() if name not in ("kind", *CONTAINER_KEYS)
        }
        row |= {
            name: {key: _parse_numbers(value) for key, value in found[name].items()}
            for name in CONTAINER_KEYS
            if name in found
        }
        row["kind"] = KINDS[KINDS.index(found["kind"])]
        whole = {"iteration", "seconds"} <= set(row) and not any(isinstance(value, list) for value in row.values())
        return row if whole and _get_shape(row) else None
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError, RecursionError):
        return None


def _parse_numbers(value: Any) -> Any:
    """Return a number, NaN for None, or lists of them; raises ValueError, or OverflowError of an int beyond floats."""
    if isinstance(value, list):
        return [_parse_numbers(one) for one in value]
    if value is None:
        return math.nan
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("is no number")
    return value


def _get_shape(row: Row) -> tuple[Any, ...]:
    """Return the number of seeds, and of members' values all axes but that of generations; raises where they differ."""
    ((count,),) = {np.array(values, float).shape for values in row.get("seeds", {}).values()} or {(1,)}
    shapes = {name: np.array(values, float).shape for name, values in row.get("members", {}).items()}
    for name, shape in shapes.items():
        if len(shape) < MEMBER_AXES or shape[0] != count:
            raise ValueError(f"{name} is not that of members")
    return count, sorted((name, *shape[2:]) for name, shape in shapes.items())


def per_seed(values: np.ndarray, num_seeds: int) -> list[int]:
    """Counts [seeds, members...] or [members...] of one seed, summed over members."""
    return [int(x) for x in np.asarray(values).reshape(num_seeds, -1).sum(1)]


def make_row(progress: Progress, metrics: dict[str, np.ndarray], kind: str, duration: float) -> Row:
    """A record that JSON can hold: totals and metrics of the runs together, and apart where there are several.

    Means are over the runs that have not diverged, those of episodes over the runs in which one has ended: where none
    has, 0 of a chunk and NaN of an evaluation, all of whose episodes were cut. What members have of their own is under
    "members", by name [seeds][generations][n]; where it is real, the row has its spread too.
    """
    row: Row = {"kind": kind, "iteration": progress.iteration, "seconds": progress.seconds, "duration": duration}
    row |= {name: getattr(progress, name) for name in TIME_FIELDS}
    totals, num_seeds = dict(progress.totals), len(progress.divergence_iterations)
    apart: dict[str, list[float]] = {}
    for name, values in metrics.items():
        if name.startswith(MEMBERS_PREFIX):
            name, values = (
                name.removeprefix(MEMBERS_PREFIX),
                reshape_member_metrics(np.asarray(values), num_seeds, kind),
            )
            row.setdefault("members", {})[name] = values.tolist()
            if np.issubdtype(values.dtype, np.floating):
                apart |= summarize_members(name, values)
        elif name not in COUNTS:
            apart[name] = np.asarray(values, np.float64).reshape(num_seeds, -1).mean(1).tolist()
    row |= {name: progress.mean(name) for name in totals}
    episodes = per_seed(metrics["episodes"], num_seeds) if "episodes" in metrics else [1] * num_seeds
    whole = [x is None for x in progress.divergence_iterations]
    for name, values in apart.items():
        ended = episodes if name in EPISODE_MEANS else [1] * num_seeds
        counted = [x for x, n, sound in zip(values, ended, whole, strict=True) if n and (sound or not any(whole))]
        none = 0.0 if kind == "train" else math.nan
        row[name] = math.fsum(counted) / len(counted) if counted else none
    row["diverged"] = num_seeds - sum(whole)
    if num_seeds > 1:
        row["seeds"] = totals | apart | {"diverged": [int(not sound) for sound in whole]}
    return row


def compute_return_interval(row: Row, prefix: str = "", episodes: float = math.inf) -> tuple[float, float]:
    """Return the 95 % interval of a row's return, infinite where it is not known.

    Args:
        row: of several seeds, over which it then is, or of one, from the error of its mean.
        prefix: "best_" for the return of the best policies.
        episodes: of that one.
    """
    if "seeds" in row:
        return stats.mean_interval([value for value in row["seeds"][f"{prefix}return"] if math.isfinite(value)])
    error = row.get(f"{prefix}{RETURN_ERROR}", math.inf)
    if episodes == 1 and error == 0:  # it is computed, as that of one episode is not known
        return row[f"{prefix}return"], row[f"{prefix}return"]
    error = error if episodes >= stats.MIN_RUNS else math.inf
    return stats.MeanEstimate(row[f"{prefix}return"], error, episodes - 1).interval()


def reshape_member_metrics(values: np.ndarray, num_seeds: int, kind: str) -> np.ndarray:
    """Metrics [generations, (seeds), n...] of a chunk, or [(seeds), n...] of an evaluation, which is one generation.

    As [seeds, generations, n...].
    """
    values = values if kind == "train" else values[None]
    return np.swapaxes(values, 0, 1) if num_seeds > 1 else values[None]


def summarize_members(name: str, values: np.ndarray) -> dict[str, list[float]]:
    """NAME_min, NAME_median and NAME_max over the members of each seed's last generation, but for those not finite."""
    last = [members[np.isfinite(members)] for members in values[:, -1]]
    return {
        f"{name}_{end}": [float(of(x)) if x.size else math.nan for x in last] for end, of in MEMBER_STATISTICS.items()
    }
