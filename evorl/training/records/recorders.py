"""Recorders: callables that take every row of a training. Those of this file write it to files."""

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
    """What a training hands its rows to; any function of a row will do, close is for those that hold something open.

    A row is a dict of numbers with `kind`, "train" or "evaluation"; where several seeds train, `seeds` has each one's,
    and of a population `members` has each member's (see rows.make_row).
    A recorder may have a resume (callbacks.ResumeCallback), which drops what was written after the checkpoint that
    training goes on from, since it comes again.
    """

    def __call__(self, row: Row) -> None:
        """Takes a row."""
        ...

    def close(self) -> None:
        """Lets go of what it holds."""
        ...


class JsonLines:
    """Appends every row to metrics.jsonl, one JSON object a line."""

    def __init__(self, run_dir: Path) -> None:
        self._path = Path(run_dir) / JSON_LINES

    def __call__(self, row: Row) -> None:
        with files.open_for_appending(self._path) as file:
            file.write(to_json_line(row) + "\n")

    def resume(self, progress: Progress) -> None:
        files.truncate_lines(self._path, sum(progress.row_counts.values()))

    def close(self) -> None:
        """Every row is on disk already."""


class JsonStream:
    """Writes every row to a stream, one JSON object a line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, row: Row) -> None:
        print(to_json_line(row), file=self._out, flush=True)

    def close(self) -> None:
        """Every row is written already."""


WANDB_IDENTITY = "wandb.json"
FINAL_METRICS = (f"{BEST_PREFIX}return", f"{BEST_PREFIX}{RETURN_ERROR}")  # metrics that the last evaluation alone has


class Csv:
    """Appends to train.csv and evaluation.csv a line for each seed of every row."""

    def __init__(self, run_dir: Path, first_seed: int = 0) -> None:
        self._run_dir, self._first_seed = Path(run_dir), first_seed
        self._columns: dict[str, list[str]] = {}

    def resume(self, progress: Progress) -> None:
        for kind, rows in progress.row_counts.items():
            files.truncate_lines(
                self._run_dir / f"{kind}.csv", (rows > 0) + rows * len(progress.divergence_iterations)
            )  # a header, and seeds

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
        """Every row is on disk already."""


class TensorBoard:
    """Writes event files for TensorBoard, over env steps: means over seeds, and each seed's own."""

    def __init__(self, run_dir: Path, first_seed: int = 0) -> None:
        self._folder, self._first_seed = Path(run_dir) / "tensorboard", first_seed

    @cached_property
    def _writer(self) -> Any:
        from tensorboardX.event_file_writer import EventsWriter  # the plain one, which starts no thread

        self._folder.mkdir(exist_ok=True)
        return EventsWriter(str(self._folder / "events"))

    def resume(self, progress: Progress) -> None:
        if progress.iteration:
            self._write(1 + progress.mean("env_steps"), session_log={"status": "START"})  # drops what it had from there

    def __call__(self, row: Row) -> None:
        values = {f"{row['kind']}/{name}": value for name, value in select_metrics(row).items()}
        for line in split_by_seed(row, self._first_seed) if "seeds" in row else ():
            values |= {f"{row['kind']}_by_seed/{name}/{line['seed']}": line[name] for name in row["seeds"]}
        scalars = [{"tag": tag, "simple_value": value} for tag, value in values.items()]
        self._write(row.get("env_steps", row["iteration"]), summary={"value": scalars})
        if row["kind"] == "evaluation":
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, step: int, **what: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  it is generated

        self._writer.write_event(Event(wall_time=time.time(), step=step, **what))


class Wandb:
    """Sends every row once to Weights & Biases, into a run of its own, which a resumed training goes on with.

    Args:
        run_dir: has the identity of that run in wandb.json, and how many rows it was sent; both are made where there
            are none.
        config: of the training.
        project: where the run is; "evorl" by default.
        entity: whose project it is; by default the user's own.
        group: of runs that belong together.
        tags: of the run.
        mode: online, offline or disabled; by default as WANDB_MODE says.

    Raises:
        OptionError: where wandb is not installed, or the run was recorded in another project.
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
                require(value == known, f"wandb.{name}", value, f"must be {known}, where this run was recorded before")
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
        self._position = sum(progress.row_counts.values())  # rows that come again were sent before

    def __call__(self, row: Row) -> None:
        self._position += 1
        if self._position <= self._identity["rows"]:
            return
        values = {f"{row['kind']}/{name}": value for name, value in select_metrics(row).items()}
        values["env_steps"] = row.get("env_steps", row["iteration"])
        self._run.log(values, step=self._position)
        self._identity["rows"] = self._position
        self._remember()

    def close(self) -> None:
        self._run.finish()

    def _remember(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(self._path, json.dumps(self._identity))


def _read_wandb_identity(path: Path) -> dict[str, Any]:
    """Read the identity of a run of Weights & Biases; raise OptionError where it is not as evorl writes it."""
    try:
        found = json.loads(files.read_text(path))
        right = found.keys() == {"id", "project", "entity", "rows"} and re.fullmatch(r"[0-9a-f]{16}", found["id"])
        right = right and isinstance(found["rows"], int) and found["rows"] >= 0
        if not right or not all(found[name] is None or isinstance(found[name], str) for name in ("project", "entity")):
            raise ValueError
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise OptionError(f"{path}: is not as evorl writes it; without it the run is recorded as a new one") from error
    return found


def require_wandb() -> Any:
    """The package wandb; raises OptionError where it is not installed."""
    try:
        import wandb  # pyright: ignore[reportMissingImports]  an extra
    except ImportError as error:
        raise OptionError(f"wandb=true: the package wandb is missing; {package.install_command('wandb')}") from error
    return wandb


def select_metrics(row: Row) -> dict[str, float]:
    """The numbers of a row, without what says where in the training it stands."""
    return {
        name: value for name, value in row.items() if name not in ("kind", "iteration", "progress", *CONTAINER_KEYS)
    }


def split_by_seed(row: Row, first_seed: int) -> Iterator[Row]:
    """The row as one flat row for each seed, with its own totals and metrics."""
    shared = {"seed": first_seed} | {name: value for name, value in row.items() if name not in CONTAINER_KEYS}
    own = row.get("seeds", {})
    for seed in range(len(next(iter(own.values()), [None]))):
        yield shared | {"seed": first_seed + seed} | {name: values[seed] for name, values in own.items()}


def _read_columns(path: Path) -> list[str]:
    return next(csv.reader(line.decode() for line in files.read_lines(path)))


def to_json_line(row: Row) -> str:
    """Return a row as JSON, with null for what JSON has no number for."""
    return json.dumps(_replace_nonfinite(row), allow_nan=False)


def _replace_nonfinite(value: Any) -> Any:
    """value with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: _replace_nonfinite(x) for name, x in value.items()}
    if isinstance(value, list):
        return [_replace_nonfinite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
