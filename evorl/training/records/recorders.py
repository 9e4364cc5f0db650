"""Recorders: callables that receive every row of a training. The recorders here write rows to files and services."""

import csv
import json
import math
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from typing_extensions import Protocol

from evorl import package
from evorl.errors import OptionError, require
from evorl.metrics import BEST_PREFIX, RETURN_ERROR
from evorl.training.progress import Progress
from evorl.training.records import files
from evorl.training.records.rows import CONTAINER_KEYS, JSON_LINES, Row


class Recorder(Protocol):
    """Protocol of a recorder. Every function of a row is a valid callback; a recorder can also be closed.

    A row is a dict of numbers with `kind`, "train" or "evaluation". With several seeds, `seeds` holds the
    values of each seed; for a population, `members` holds the values of each member (see `rows.make_row`). A
    recorder may have a method `resume` (`callbacks.ResumeCallback`). It drops the rows written after the
    checkpoint from which training resumes, since they are recorded again.
    """

    def __call__(self, row: Row) -> None:
        """Record a row."""
        ...

    def close(self) -> None:
        """Release open files and connections."""
        ...


class JsonLines:
    """Recorder that appends every row to metrics.jsonl, one JSON object per line."""

    def __init__(self, run_dir: Path) -> None:
        self._path = Path(run_dir) / JSON_LINES

    def __call__(self, row: Row) -> None:
        line = to_json_line(row) + "\n"
        if len(line) > files.LINE_BYTES:
            raise OptionError(
                f"chunk: a row of {len(line) / files.MB:.0f} MB is too long to record; use fewer iterations"
            )
        with files.open_for_appending(self._path) as file:
            file.write(line)

    def resume(self, progress: Progress) -> None:
        files.truncate_lines(self._path, sum(progress.row_counts.values()))

    def close(self) -> None:
        """Do nothing, since every row is already on disk."""


class JsonStream:
    """Recorder that writes every row to a stream, one JSON object per line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, row: Row) -> None:
        print(to_json_line(row), file=self._out, flush=True)

    def close(self) -> None:
        """Do nothing, since every row is already written."""


WANDB_IDENTITY = "wandb.json"
FINAL_METRICS = (f"{BEST_PREFIX}return", f"{BEST_PREFIX}{RETURN_ERROR}")  # only in the last evaluation


class Csv:
    """Recorder that appends each row to train.csv or evaluation.csv, one line per seed."""

    def __init__(self, run_dir: Path, first_seed: int = 0) -> None:
        self._run_dir, self._first_seed = Path(run_dir), first_seed
        self._columns: dict[str, list[str]] = {}

    def resume(self, progress: Progress) -> None:
        for kind, rows in progress.row_counts.items():
            files.truncate_lines(
                self._run_dir / f"{kind}.csv", (rows > 0) + rows * len(progress.divergence_iterations)
            )  # one header line, and one line per seed and row

    def __call__(self, row: Row) -> None:
        path = self._run_dir / f"{row['kind']}.csv"
        lines = list(split_by_seed(row, self._first_seed))
        with files.open_for_appending(path) as file:
            new = not file.tell()
            if row["kind"] not in self._columns:
                last = FINAL_METRICS if row["kind"] == "evaluation" else ()
                self._columns[row["kind"]] = list(dict.fromkeys([*lines[0], *last])) if new else _read_columns(path)
            writer = csv.DictWriter(file, self._columns[row["kind"]], extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerows(lines)

    def close(self) -> None:
        """Do nothing, since every row is already on disk."""


class TensorBoard:
    """Recorder that writes event files for TensorBoard over env steps: means over seeds, and values per seed."""

    def __init__(self, run_dir: Path, first_seed: int = 0) -> None:
        self._folder, self._first_seed = Path(run_dir) / "tensorboard", first_seed

    @cached_property
    def _writer(self) -> Any:
        from tensorboardX.event_file_writer import EventsWriter  # this writer starts no thread

        self._folder.mkdir(exist_ok=True)
        return EventsWriter(str(self._folder / "events"))

    def resume(self, progress: Progress) -> None:
        if self._folder.is_dir():  # drops events after the checkpoint, or all if there is none
            step = 1 + (progress.mean("env_steps") or progress.iteration) if progress.iteration else 0
            self._write(step, session_log={"status": "START"})

    def __call__(self, row: Row) -> None:
        values = {f"{row['kind']}/{name}": value for name, value in select_metrics(row).items()}
        for line in split_by_seed(row, self._first_seed) if "seeds" in row else ():
            values |= {f"{row['kind']}_by_seed/{name}/{line['seed']}": line[name] for name in row["seeds"]}
        scalars = [{"tag": tag, "simple_value": value} for tag, value in values.items()]
        self._write(row.get("env_steps") or row["iteration"], summary={"value": scalars})
        if row["kind"] == "evaluation":
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, step: int, **what: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  it is generated

        self._writer.write_event(Event(wall_time=time.time(), step=step, **what))


class Wandb:
    """Recorder that sends every row once to one run of Weights & Biases; a resumed training continues that run.

    Args:
        run_dir: Run directory. Its wandb.json holds the identity of the W&B run and the number of rows sent;
            both are created if missing.
        config: Configuration of the training.
        project: Project of the W&B run; by default "evorl".
        entity: Owner of the project; by default the user.
        group: Group of related runs.
        tags: Tags of the W&B run.
        mode: "online", "offline" or "disabled"; by default the value of WANDB_MODE.

    Raises:
        OptionError: wandb is not installed, or the run was recorded before in another project or by another
            entity.
    """

    def __init__(
        self,
        run_dir: Path,
        config: dict[str, Any],
        project: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        mode: str | None = None,
    ) -> None:
        self._path, where = Path(run_dir) / WANDB_IDENTITY, {"project": project or "evorl", "entity": entity}
        self._identity = {"id": uuid.uuid4().hex[:16], **where, "rows": 0}
        resumed = self._path.exists()
        if resumed:
            self._identity = _read_wandb_identity(self._path)
            for name, value in where.items():
                known = self._identity[name]
                require(value == known, f"wandb.{name}", value, f"must be {known}, as before the run was resumed")
        self._position = 0
        self._run = require_wandb().init(
            id=self._identity["id"],
            name=Path(run_dir).resolve().name,
            dir=str(run_dir),
            group=group,
            tags=list(tags),
            mode=mode,
            config=config,
            resume="allow" if resumed else None,
            **where,
        )
        self._run.define_metric("*", step_metric="env_steps")
        self._remember()

    def resume(self, progress: Progress) -> None:
        self._position = sum(progress.row_counts.values())  # repeated rows were sent before

    def __call__(self, row: Row) -> None:
        self._position += 1
        if self._position <= self._identity["rows"]:
            return
        values = {f"{row['kind']}/{name}": value for name, value in select_metrics(row).items()}
        values["env_steps"] = row.get("env_steps") or row["iteration"]
        self._run.log(values, step=self._position)
        self._identity["rows"] = self._position
        self._remember()

    def close(self) -> None:
        self._run.finish()

    def _remember(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(self._path, json.dumps(self._identity))


def _read_wandb_identity(path: Path) -> dict[str, Any]:
    """Read the identity of a W&B run; raise OptionError if the file does not have the format that evorl writes."""
    try:
        found = json.loads(files.read_text(path))
        right = found.keys() == {"id", "project", "entity", "rows"} and re.fullmatch(r"[0-9a-f]{16}", found["id"])
        right = right and isinstance(found["rows"], int) and found["rows"] >= 0
        if not right or not all(found[name] is None or isinstance(found[name], str) for name in ("project", "entity")):
            raise ValueError
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise OptionError(f"{path}: is not a valid file of evorl; delete it to record the run as a new one") from error
    return found


def require_wandb() -> Any:
    """Return the package wandb; raise OptionError if it is not installed."""
    try:
        import wandb  # pyright: ignore[reportMissingImports]  an extra
    except ImportError as error:
        raise OptionError(f"wandb=true: the package wandb is missing; {package.install_command('wandb')}") from error
    return wandb


def select_metrics(row: Row) -> dict[str, float]:
    """Return the numbers of a row, without kind, iteration and progress."""
    return {
        name: value for name, value in row.items() if name not in ("kind", "iteration", "progress", *CONTAINER_KEYS)
    }


def split_by_seed(row: Row, first_seed: int) -> Iterator[Row]:
    """Yield one flat row per seed, with the totals and metrics of the seed."""
    shared = {"seed": first_seed} | {name: value for name, value in row.items() if name not in CONTAINER_KEYS}
    own = row.get("seeds", {})
    for seed in range(len(next(iter(own.values()), [None]))):
        yield shared | {"seed": first_seed + seed} | {name: values[seed] for name, values in own.items()}


def _read_columns(path: Path) -> list[str]:
    return next(csv.reader(line.decode() for line in files.read_lines(path)))


def to_json_line(row: Row) -> str:
    """Return a row as JSON, with null for NaN and infinity."""
    return json.dumps(_replace_nonfinite(row), allow_nan=False)


def _replace_nonfinite(value: Any) -> Any:
    """Replace NaN and infinity by None."""
    if isinstance(value, dict):
        return {name: _replace_nonfinite(x) for name, x in value.items()}
    if isinstance(value, list):
        return [_replace_nonfinite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
