"""The rows, evaluations and checkpoints of a training by tasks, as evorl.train writes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
from typing_extensions import Protocol, runtime_checkable

from evorl.errors import DivergedError
from evorl.parts import resolve_numbers
from evorl.training.configuration import trust_check
from evorl.training.devices import compiler_options
from evorl.training.driver import BEST_KEY_OFFSET
from evorl.training.nans import DivergenceMonitor, describe_divergence
from evorl.training.program import FAST_COMPILE_OPTIONS, Program
from evorl.training.progress import Budget, Progress
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import make_row
from evorl.training.summary import describe_checkpoint
from evorl.training.training_log import TrainingLog
from evorl.types import Metrics, State


@runtime_checkable
class IterationResult(Protocol):
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
class RunSchedule:
    """So many iterations, of which each `chunk_size` share a row.

    All are evaluated; or, before the first and at the end, so many of them as `num_evaluations` says.
    """

    budget: Budget
    iterations: int
    chunk_size: int = 1
    num_evaluations: int | None = None

    def count_due_evaluations(self, iteration: int) -> int:
        """How many evaluations are to be done by an iteration, but for the first."""
        return (self.num_evaluations or 0) * iteration // self.iterations


@dataclass(frozen=True)
class RunContext:
    """What is to be recorded: its configuration as data, its folder, and those who are told its rows."""

    configuration: Mapping[str, Any]
    folder: Path
    recorders: Sequence[Any] = ()


class RunRecorder:
    """A run by a schedule, whose evaluations take no more than evaluation_share of the env steps.

    `keeps` is told of an iteration before its checkpoint is saved. What has diverged is recorded, but not saved.
    """

    def __init__(
        self,
        workflow: Any,
        run: RunContext,
        schedule: RunSchedule,
        keeps: Callable[[Any], None] = lambda one: None,
    ) -> None:
        data, self.run_dir, self.packages = (
            run.configuration,
            run.folder,
            trust_check.find_trust_packages(run.configuration),
        )
        self.schedule, self.keeps, self.share = schedule, keeps, data["evaluation_share"] or 1.0
        self.checkpoints = Checkpoints(run.folder / "checkpoints", **data["checkpoint"])
        self.training_log = TrainingLog([data["seed"]], schedule.budget, run.recorders, keep_rows=False)
        program = Program(workflow, [data["seed"]], schedule.chunk_size, side_by_side=False)
        self.evaluate, self.key = jax.jit(workflow.evaluate, compiler_options=compiler_options()), program.keys[0, 2]
        state = jax.jit(workflow.init, compiler_options=FAST_COMPILE_OPTIONS)(
            program.keys[0, 0], resolve_numbers(workflow)
        )
        self.sentinel = DivergenceMonitor(program, state, [False])
        self.training_log.start(state)
        self.last: Any = None  # that has a row
        self.since: list[Metrics] = []  # of iterations that have none yet
        self.before = 0.0  # seconds, of the training that goes on

    def restore(self, shapes: State) -> State | None:
        """The state of the newest checkpoint, from which rows go on; None where there is none."""
        if self.checkpoints.latest_iteration is None:
            self.training_log.notify_resume()
            self._record_evaluation(self.training_log.best, 0)
            return None
        state, best, saved = self.checkpoints.restore(shapes)
        progress = Progress.from_dict(saved, 1)
        progress.evaluation_point = min(
            progress.evaluation_point, self.schedule.count_due_evaluations(progress.iteration)
        )
        self.before = progress.seconds
        self.training_log.start(best, progress)
        self.training_log.notify_resume()
        return state

    def record_iteration(self, one: IterationResult) -> None:
        """Records an iteration, and an evaluation of it where that is due; raises DivergedError."""
        progress = self.training_log.progress
        self.since.append(jax.device_get(one.metrics))
        if len(self.since) < self.schedule.chunk_size and one.number < self.schedule.iterations:
            return
        metrics = {name: np.stack([found[name] for found in self.since]) for name in self.since[0]}
        seconds = self.before + one.seconds
        duration, progress.seconds = seconds - progress.seconds, seconds
        counted = self.training_log.add_chunk(len(self.since), metrics)
        leaf = self.sentinel.find_diverged(np.asarray(self.sentinel.find_nonfinite(one.state)))[0]
        progress.divergence_iterations = [None if leaf is None else progress.iteration]
        self.training_log.record(make_row(progress, counted, "train", duration))
        if leaf is not None:
            self.checkpoints.close()
            problem = describe_divergence(leaf, progress.iteration)
            raise DivergedError(f"{problem}; {describe_checkpoint(self.checkpoints, self.run_dir, self.packages)}")
        self.last, self.since = one, []
        if self._is_evaluation_due(progress):
            self._record_evaluation(one.state, one.number)
        if self.checkpoints.is_due():
            self.save()

    def _record_evaluation(self, state: State, iteration: int) -> None:
        """Record an evaluation of a state; at the end the best one anew, see Driver.run_final_evaluation."""
        begun, key = perf_counter(), jax.random.fold_in(self.key, iteration)
        measured, anew = jax.device_get(self.evaluate(state, key)), None
        if self.training_log.is_finished:
            self.training_log.keep_best(state, measured["return"])
            anew = jax.device_get(self.evaluate(self.training_log.best, jax.random.fold_in(key, BEST_KEY_OFFSET)))
        self.training_log.record_evaluation(state, measured, perf_counter() - begun, anew)

    def save(self) -> None:
        """Saves what has a row, unless a checkpoint is newer: a run that goes on may come to its iterations again."""
        if self.last is not None and self.training_log.progress.iteration > (self.checkpoints.latest_iteration or 0):
            self.keeps(self.last)
            progress = asdict(self.training_log.progress)
            self.checkpoints.save(
                self.training_log.progress.iteration, self.last.state, self.training_log.best, progress
            )

    def close(self) -> None:
        """Saves the last state."""
        self.save()
        self.checkpoints.close()

    def _is_evaluation_due(self, progress: Progress) -> bool:
        """Whether an iteration is to be evaluated."""
        if self.schedule.num_evaluations is None or self.training_log.is_finished:
            return True
        point = self.schedule.count_due_evaluations(progress.iteration)
        if point <= progress.evaluation_point or not progress.has_evaluation_room(
            progress.mean("env_steps"), self.share
        ):
            return False
        progress.evaluation_point = point
        return True
