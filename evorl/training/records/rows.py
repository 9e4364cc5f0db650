"""Rows: the record that a training makes of each chunk of iterations and of each evaluation."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evorl import stats
from evorl.errors import OptionError
from evorl.metrics import COUNTS, MEMBERS_PREFIX, RETURN_BEST, RETURN_ERROR, is_episode_mean
from evorl.training.progress import KINDS, Progress, select_sound
from evorl.training.records import files
from evorl.training.records.json_cache import JsonCache

JSON_LINES = "metrics.jsonl"
T_QUANTILES_FILE = "t_quantiles.json"  # of confidence intervals, by degrees of freedom and confidence level
CONTAINER_KEYS = ("seeds", "members")  # entries of a row that are neither numbers nor its kind
MEMBER_AXES = 3  # minimum number of axes of members' values: seeds, generations, members
TIME_FIELDS = ("compile_seconds", "evaluation_seconds", "host_seconds", "idle_seconds")

MEMBER_STATISTICS = {"min": np.min, "median": np.median, "max": np.max}

Row = dict[str, Any]


class RunRows(NamedTuple):
    """Rows that a run has recorded so far, and an error message about damaged rows, empty if there are none."""

    rows: list[Row]
    damage: str


def read_rows(run_dir: Path, kind: str, most: float = math.inf) -> RunRows:
    """Read the rows of one kind, without damaged ones. Rows of other kinds are not parsed.

    Args:
        run_dir: Run directory, which need not have rows yet.
        kind: Kind of the rows, "train" or "evaluation".
        most: Maximum number of rows, at least 1; the file is read no further.

    Returns:
        The rows in their order, with NaN for null, and an error message about the damaged rows.

    Raises:
        OptionError: The file cannot be read.
    """
    path, rows, damaged, count = run_dir / JSON_LINES, list[Row](), list[int](), 0
    if not path.exists():
        return RunRows(rows, "")
    try:
        others = tuple(b'{"kind": "%b", ' % other.encode() for other in KINDS if other != kind)
        for count, line in enumerate(files.read_lines(path), 1):
            if line.startswith(others) and line.endswith(b"}\n"):
                continue
            row = _parse_row(line)
            if row is None or (row["kind"] == kind and rows and _get_shape(row) != _get_shape(rows[0])):
                damaged.append(count)
            elif row["kind"] == kind:
                rows.append(row)
                if len(rows) >= most:
                    break
    except OSError as error:
        raise OptionError(f"run={run_dir}: its {JSON_LINES} cannot be read: {error.strerror}") from error
    if not damaged:
        return RunRows(rows, "")
    told = f"{len(damaged)} of {count} lines of its {JSON_LINES} are damaged, the first is line {damaged[0]}"
    return RunRows(rows, f"run={run_dir}: {told}")


def read_evaluations(run_dir: Path) -> list[Row]:
    """Read the evaluations that a run has recorded so far; the list is empty if it has no rows yet.

    Raises:
        OptionError: A row is damaged, or the file cannot be read.
    """
    found = read_rows(run_dir, "evaluation")
    if found.damage:
        raise OptionError(found.damage)
    return found.rows


def _parse_row(line: bytes) -> Row | None:
    """Parse a JSON row, with NaN for null; return None if `make_row` cannot have made it."""
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
        if "members" in row:  # a fourth of the memory of lists
            row["members"] = {name: np.array(values, float) for name, values in row["members"].items()}
        row["kind"] = KINDS[KINDS.index(found["kind"])]
        whole = {"iteration", "seconds"} <= set(row) and not any(isinstance(value, list) for value in row.values())
        return row if whole and _get_shape(row) else None
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError, RecursionError):
        return None


def _parse_numbers(value: Any) -> Any:
    """Return a number or nested lists of numbers, with NaN for None.

    Raises:
        ValueError: A value is not a finite number.
        OverflowError: An int is too large for a float.
    """
    if type(value) in (int, float) and math.isfinite(value):
        return value
    if isinstance(value, list):
        return [_parse_numbers(one) for one in value]
    if value is None:
        return math.nan
    raise ValueError("is no number")


def _get_shape(row: Row) -> tuple[Any, ...]:
    """Return the number of seeds, and the shapes of the members' values without the axes of seeds and generations.

    Raises:
        ValueError: The numbers of seeds differ, or the values of members have too few axes.
    """
    if "seeds" not in row and "members" not in row:
        return 1, []
    ((count,),) = {np.array(values, float).shape for values in row.get("seeds", {}).values()} or {(1,)}
    shapes = {name: np.array(values, float).shape for name, values in row.get("members", {}).items()}
    for name, shape in shapes.items():
        if len(shape) < MEMBER_AXES or shape[0] != count:
            raise ValueError(f"{name} is not that of members")
    return count, sorted((name, *shape[2:]) for name, shape in shapes.items())


def per_seed(values: np.ndarray, num_seeds: int) -> list[int]:
    """Sum counts over members, and return one count per seed.

    The counts have shape [seeds, members...], or [members...] with one seed.
    """
    return [int(x) for x in np.asarray(values).reshape(num_seeds, -1).sum(1)]


def make_row(progress: Progress, metrics: dict[str, np.ndarray], kind: str, duration: float) -> Row:
    """Make a row, which JSON can represent: totals and metrics averaged over the seeds, and the values of each seed.

    Means are over the runs that have not diverged; if all have, over all runs. Episode means are over the
    runs in which an episode has ended. If there is none, the mean is 0 for a chunk, and NaN for an
    evaluation, whose episodes were all cut. With several seeds, "seeds" holds the values of each seed.
    "members" holds the metrics of members by name, as lists [seeds][generations][n]. For real-valued member
    metrics, the row also has their minimum, median and maximum.
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
    lost = [x is not None for x in progress.divergence_iterations]
    for name, values in apart.items():
        ended = episodes if is_episode_mean(name) else [1] * num_seeds
        if name == RETURN_BEST:  # of seeds whose training may have ended no episode
            ended = [not math.isnan(x) for x in values]
        counted = [x for x, n in select_sound([*zip(values, ended, strict=True)], lost) if n]
        none = 0.0 if kind == "train" and name != RETURN_BEST else math.nan
        whole = math.fsum if all(map(math.isfinite, counted)) else sum  # fsum raises for inf and -inf together
        row[name] = float(whole(counted) / len(counted)) if counted else none
    row["diverged"] = sum(lost)
    if num_seeds > 1:
        row["seeds"] = totals | apart | {"diverged": [int(x) for x in lost]}
    return row


def compute_return_interval(
    row: Row, prefix: str = "", episodes: float = math.inf, freedom: float | None = None
) -> tuple[float, float]:
    """Return the 95 % confidence interval of the return of a row; infinite if it is unknown.

    With several seeds, the interval is over the seeds that have not diverged, or over all if all have. With one
    seed, it follows from the standard error of the return.

    Args:
        row: The row.
        prefix: "best_" for the return of the best policies, otherwise empty.
        episodes: Number of episodes of the evaluation with one seed.
        freedom: Degrees of freedom of its standard error; None for one less than the episodes.
    """
    if "seeds" in row:
        sound = select_sound(row["seeds"][f"{prefix}return"], row["seeds"].get("diverged", ()))
        returns = [value for value in sound if math.isfinite(value)]
        return stats.MeanEstimate.from_scores(returns).interval(quantile=_recall_t_quantile)
    error = row.get(f"{prefix}{RETURN_ERROR}", math.inf)
    if episodes == 1 and error == 0:  # an exact return; the error of one sampled episode would be unknown
        return row[f"{prefix}return"], row[f"{prefix}return"]
    freedom = episodes - 1 if freedom is None else freedom
    error = error if freedom >= stats.MIN_RUNS - 1 else math.inf
    return stats.MeanEstimate(row[f"{prefix}return"], error, freedom).interval(quantile=_recall_t_quantile)


def _recall_t_quantile(degrees_of_freedom: float, confidence: float) -> float:
    """Return a t quantile that an earlier training computed, since to import SciPy takes as long as to trace PPO."""
    cache, name = JsonCache(T_QUANTILES_FILE), f"{degrees_of_freedom!r} {confidence!r}"
    found = cache.get(name)
    if not isinstance(found, float):
        found = stats.compute_t_quantile(degrees_of_freedom, confidence)
        cache.put(name, found)
    return found


def reshape_member_metrics(values: np.ndarray, num_seeds: int, kind: str) -> np.ndarray:
    """Reshape the metrics of members to [seeds, generations, n...].

    Metrics of a chunk have shape [generations, (seeds), n...]. Metrics of an evaluation have shape
    [(seeds), n...], and count as one generation.
    """
    values = values if kind == "train" else values[None]
    return np.swapaxes(values, 0, 1) if num_seeds > 1 else values[None]


def summarize_members(name: str, values: np.ndarray) -> dict[str, list[float]]:
    """Return NAME_min, NAME_median and NAME_max over the finite values of the members in the last generation.

    Each is a list with one value per seed.
    """
    last = [members[np.isfinite(members)] for members in values[:, -1]]
    return {
        f"{name}_{end}": [float(of(x)) if x.size else math.nan for x in last] for end, of in MEMBER_STATISTICS.items()
    }
