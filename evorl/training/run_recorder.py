"""Recording of a training that runs as distributed tasks: rows, evaluations and checkpoints as in `evorl.train`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
from typing_extensions import Protocol, runtime_checkable

from evorl.envs.host import pool_registry
from evorl.errors import DivergedError
from evorl.metrics import count_episodes, reduce_rounds
from evorl.parts import resolve_numbers
from evorl.training.configuration import trust_check
from evorl.training.devices import compiler_options, fast_compile_options
from evorl.training.driver import BEST_KEY_OFFSET, FINAL_EPISODES
from evorl.training.nans import DivergenceMonitor, describe_divergence
from evorl.training.program import Program
from evorl.training.progress import Budget, Progress
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import make_row
from evorl.training.summary import describe_checkpoint
from evorl.training.training_log import TrainingLog
from evorl.types import Metrics, State


@runtime_checkable
class IterationResult(Protocol):
    """Protocol of the result of an iteration."""

    @property
    def number(self) -> int:
        """Return the number of the iteration, counted from 1."""
        ...

    @property
    def state(self) -> State:
        """Return the state of the workflow."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Return the metrics of the iteration."""
        ...

    @property
    def seconds(self) -> float:
        """Return the seconds since the training began or resumed."""
        ...


@dataclass(frozen=True)
class RunSchedule:
    """Schedule of a run: the number of iterations, how many share a row, and when to evaluate.

    There are evaluations before the first iteration, at the ends of `num_evaluations` equal intervals, the last
    of which is the end, or after each row if `num_evaluations` is None.
    """

    budget: Budget
    iterations: int
    chunk_size: int = 1
    num_evaluations: int | None = None

    def count_due_evaluations(self, iteration: int) -> int:
        """Return how many evaluations are scheduled up to an iteration, without the one before the first iteration."""
        return (self.num_evaluations or 0) * iteration // self.iterations


@dataclass(frozen=True)
class RunContext:
    """Configuration, folder and recorders of a run."""

    configuration: Mapping[str, Any]
    folder: Path
    recorders: Sequence[Any] = ()


class RunRecorder:
    """Recorder of a run with a schedule, whose scheduled evaluations take at most evaluation_share of the env steps.

    `keeps` is called with the result of an iteration before its checkpoint is saved. A diverged state is
    recorded, but not saved.
    """

    def __init__(
        self,
        workflow: Any,
        run: RunContext,
        schedule: RunSchedule,
        keeps: Callable[[Any], None] = lambda one: None,
    ) -> None:
        data, self.run_dir = run.configuration, run.folder
        self.packages = trust_check.find_trust_packages(data)
        self.schedule, self.keeps, self.share = schedule, keeps, data["evaluation_share"] or 1.0
        self.checkpoints = Checkpoints(run.folder / "checkpoints", **data["checkpoint"])
        self.training_log = TrainingLog([data["seed"]], schedule.budget, run.recorders, keep_rows=False)
        program = Program(workflow, [data["seed"]], schedule.chunk_size, vectorized=False)
        self.evaluate, self.key = jax.jit(workflow.evaluate, compiler_options=compiler_options()), program.keys[0, 2]
        state = jax.jit(workflow.init, compiler_options=fast_compile_options())(
            program.keys[0, 0], resolve_numbers(workflow)
        )
        self.divergence_monitor = DivergenceMonitor(program, state)
        self.training_log.start(state)
        self.last: Any = None  # last iteration with a row
        self.since: list[Metrics] = []  # metrics of iterations without a row so far
        self.before = 0.0  # seconds of training before the resume

    def restore(self, shapes: State, init: Callable[[], State] | None = None) -> State | None:
        """Return the state of the newest checkpoint and continue its rows; None if there is no checkpoint.

        Without a checkpoint, the initial state is evaluated and recorded. `init` returns a new state, as in
        `Checkpoints.restore`.
        """
        if self.checkpoints.latest_iteration is None:
            self.training_log.notify_resume()
            self._record_evaluation(self.training_log.best, 0)
            self.training_log.progress.evaluation_point = 0
            return None
        state, best, saved = self.checkpoints.restore(shapes, init)
        progress = Progress.from_dict(saved, 1)
        progress.evaluation_point = min(
            progress.evaluation_point, self.schedule.count_due_evaluations(progress.iteration)
        )
        self.before = progress.seconds
        self.training_log.start(best, progress)
        self.training_log.notify_resume()
        return state

    def record_iteration(self, one: IterationResult) -> None:
        """Record an iteration, and evaluate its state if an evaluation is due.

        Raises:
            DivergedError: The state has diverged.
        """
        progress = self.training_log.progress
        self.since.append(jax.device_get(one.metrics))
        if len(self.since) < self.schedule.chunk_size and one.number < self.schedule.iterations:
            return
        metrics = {name: np.stack([found[name] for found in self.since]) for name in self.since[0]}
        seconds = self.before + one.seconds
        duration, progress.seconds = seconds - progress.seconds, seconds
        counted = self.training_log.add_chunk(len(self.since), metrics)
        leaf = self.divergence_monitor.find_diverged(np.asarray(self.divergence_monitor.find_nonfinite(one.state)))[0]
        progress.divergence_iterations = [None if leaf is None else progress.iteration]
        self.training_log.record(make_row(progress, counted, "train", duration))
        if leaf is not None:
            self.checkpoints.close()
            problem = describe_divergence(leaf, progress.iteration)
            raise DivergedError(f"{problem}; {describe_checkpoint(self.checkpoints, self.run_dir, self.packages)}")
        self.last, self.since = one, []
        if self._claim_evaluation(progress):
            self._record_evaluation(one.state, one.number)
        if self.checkpoints.is_due():
            self.save()

    def _record_evaluation(self, state: State, iteration: int) -> None:
        """Evaluate a state and record the result; at the end, also evaluate the best state again.

        See `Driver.run_final_evaluation`.
        """
        begun, key, anew = perf_counter(), jax.random.fold_in(self.key, iteration), None
        least = FINAL_EPISODES if self.training_log.is_finished else 0
        measured = self._run_evaluation_rounds(state, key, least)
        if self.training_log.is_finished:
            self.training_log.keep_best(state, measured["return"])
            key = jax.random.fold_in(key, BEST_KEY_OFFSET)
            anew = self._run_evaluation_rounds(self.training_log.best, key, least)
        pool_registry.release_unused((), pool_registry.newest_lease())  # no state here holds host environments
        self.training_log.record_evaluation(state, measured, perf_counter() - begun, anew)

    def _run_evaluation_rounds(self, state: State, key: jax.Array, least: int) -> dict[str, np.ndarray]:
        """Run rounds of an evaluation until at least `least` episodes have ended or were cut."""
        rounds = [jax.device_get(self.evaluate(state, key))]
        while count_episodes(rounds, least) < least:
            rounds.append(jax.device_get(self.evaluate(state, jax.random.fold_in(key, len(rounds)))))
        return rounds[0] if len(rounds) == 1 else reduce_rounds(rounds)

    def save(self) -> None:
        """Save the last recorded iteration, unless a checkpoint is newer: a resumed run may repeat iterations."""
        if self.last is not None and self.training_log.progress.iteration > (self.checkpoints.latest_iteration or 0):
            self.keeps(self.last)
            progress = asdict(self.training_log.progress)
            self.checkpoints.save(
                self.training_log.progress.iteration, self.last.state, self.training_log.best, progress
            )

    def close(self) -> None:
        """Save the last state and close the checkpoints."""
        self.save()
        self.checkpoints.close()

    def _claim_evaluation(self, progress: Progress) -> bool:
        """Return whether to evaluate the iteration, and if so, mark its point of the schedule as evaluated."""
        if self.schedule.num_evaluations is None or self.training_log.is_finished:
            return True
        has_room = progress.has_evaluation_room(progress.mean("env_steps"), self.share)
        return progress.claim_evaluation(self.schedule.count_due_evaluations(progress.iteration), has_room)
