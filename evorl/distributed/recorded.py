"""The rows, evaluations and checkpoints of a training by tasks, as evorl.train writes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from evorl.errors import DivergedError
from evorl.hyperparameters import as_state
from evorl.training.conclusion import left_of
from evorl.training.configuration import known
from evorl.training.devices import compiler_options
from evorl.training.driver import OF_BEST
from evorl.training.journal import Journal
from evorl.training.nans import Sentinel, diverged
from evorl.training.program import RUNS_ONCE, Program
from evorl.training.progress import Budget, Progress
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import row_of
from evorl.types import Metrics, State


@runtime_checkable
class Iterated(Protocol):
    """What an iteration has come to."""

    @property
    def number(self) -> int:
        """From 1."""
        ...

    @property
    def state(self) -> State:
        """The workflow's."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Those of its step."""
        ...

    @property
    def seconds(self) -> float:
        """Since the training began, or went on from a checkpoint."""
        ...


@dataclass(frozen=True)
class Schedule:
    """So many iterations, of which each `chunk` share a row.

    All are evaluated; or, before the first and at the end, so many of them as `evaluations` says.
    """

    budget: Budget
    iterations: int
    chunk: int = 1
    evaluations: int | None = None

    def point(self, iteration: int) -> int:
        """How many evaluations are to be done by an iteration, but for the first."""
        return (self.evaluations or 0) * iteration // self.iterations


@dataclass(frozen=True)
class Run:
    """What is to be recorded: its configuration as data, its folder, and those who are told its rows."""

    data: Mapping[str, Any]
    folder: Path
    recorders: Sequence[Any] = ()


class Recorded:
    """A run by a schedule, whose evaluations take no more than evaluation_share of the env steps.

    `keeps` is told of an iteration before its checkpoint is saved. What has diverged is recorded, but not saved.
    """

    def __init__(
        self,
        workflow: Any,
        hyperparams: Any,
        run: Run,
        schedule: Schedule,
        keeps: Callable[[Any], None] = lambda one: None,
    ) -> None:
        data, self.run_dir, self.packages = run.data, run.folder, known.packages(run.data)
        self.schedule, self.keeps, self.share = schedule, keeps, data["evaluation_share"] or 1.0
        self.checkpoints = Checkpoints(run.folder / "checkpoints", **data["checkpoint"])
        self.journal = Journal([data["seed"]], schedule.budget, run.recorders, keep_rows=False)
        program = Program(workflow, [data["seed"]], schedule.chunk, side_by_side=False)
        self.evaluate, self.key = jax.jit(workflow.evaluate, compiler_options=compiler_options()), program.keys[0, 2]
        state = jax.jit(workflow.init, compiler_options=RUNS_ONCE)(program.keys[0, 0], as_state(hyperparams))
        self.sentinel = Sentinel(program, state, [False])
        self.journal.begin(state)
        self.last: Any = None  # that has a row
        self.since: list[Metrics] = []  # of iterations that have none yet
        self.before = 0.0  # seconds, of the training that goes on

    def restored(self, shapes: State) -> State | None:
        """The state of the newest checkpoint, from which rows go on; None where there is none."""
        if self.checkpoints.latest is None:
            self.journal.resume()
            self._evaluated(self.journal.best, 0)
            return None
        state, best, saved = self.checkpoints.restore(shapes)
        progress = Progress.of(saved, 1)
        progress.evaluated = min(progress.evaluated, self.schedule.point(progress.iteration))
        self.before = progress.seconds
        self.journal.begin(best, progress)
        self.journal.resume()
        return state

    def add(self, one: Iterated) -> None:
        """Records an iteration, and an evaluation of it where that is due; raises DivergedError."""
        progress = self.journal.progress
        self.since.append(jax.device_get(one.metrics))
        if len(self.since) < self.schedule.chunk and one.number < self.schedule.iterations:
            return
        metrics = {name: np.stack([found[name] for found in self.since]) for name in self.since[0]}
        seconds = self.before + one.seconds
        duration, progress.seconds = seconds - progress.seconds, seconds
        counted = self.journal.count(len(self.since), metrics)
        leaf = self.sentinel.diverged(np.asarray(self.sentinel.look(one.state)))[0]
        progress.diverged = [None if leaf is None else progress.iteration]
        self.journal.record(row_of(progress, counted, "train", duration))
        if leaf is not None:
            self.checkpoints.close()
            problem = diverged(leaf, progress.iteration)
            raise DivergedError(f"{problem}; {left_of(self.checkpoints, self.run_dir, self.packages)}")
        self.last, self.since = one, []
        if self._due(progress):
            self._evaluated(one.state, one.number)
        if self.checkpoints.due():
            self.save()

    def _evaluated(self, state: State, iteration: int) -> None:
        """Record an evaluation of a state; at the end the best one is evaluated anew, see Driver.examine."""
        begun, key = perf_counter(), jax.random.fold_in(self.key, iteration)
        measured, anew = jax.device_get(self.evaluate(state, key)), None
        if self.journal.finished:
            self.journal.keep_best(state, measured["return"])
            anew = jax.device_get(self.evaluate(self.journal.best, jax.random.fold_in(key, OF_BEST)))
        self.journal.evaluated(state, measured, perf_counter() - begun, anew)

    def save(self) -> None:
        """Saves what has a row, unless a checkpoint is newer: a run that goes on may come to its iterations again."""
        if self.last is not None and self.journal.progress.iteration > (self.checkpoints.latest or 0):
            self.keeps(self.last)
            progress = asdict(self.journal.progress)
            self.checkpoints.save(self.journal.progress.iteration, self.last.state, self.journal.best, progress)

    def close(self) -> None:
        """Saves the last state."""
        self.save()
        self.checkpoints.close()

    def _due(self, progress: Progress) -> bool:
        """Whether an iteration is to be evaluated."""
        if self.schedule.evaluations is None or self.journal.finished:
            return True
        point = self.schedule.point(progress.iteration)
        if point <= progress.evaluated or not progress.has_room(progress.mean("env_steps"), self.share):
            return False
        progress.evaluated = point
        return True
