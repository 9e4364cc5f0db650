"""Training of one trial as a separate run."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.errors import LockedError
from evorl.metrics import join_measures
from evorl.parts import resolve_numbers
from evorl.replay.state_replays import split_replays
from evorl.sweeps.definition import SweepDefinition
from evorl.sweeps.store import get_trial_folder
from evorl.sweeps.trial_queue import TrialQueue
from evorl.sweeps.trials import DONE, FAILED, STOPPED, Evaluation, SweepTrial
from evorl.training import dry_run, runs
from evorl.training.configuration import config_file, parts
from evorl.training.dry_run import explain_index_overflow, explain_missing_numbers, limit_budget
from evorl.training.eval_env import EvalEnvEvaluator
from evorl.training.program import Program, make_run_args
from evorl.training.progress import Budget, Progress
from evorl.training.records import files, recorders
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import CONTAINER_KEYS, Row, make_row, read_rows
from evorl.training.suites.mazes import make_suite_measure
from evorl.training.training_log import TrainingLog
from evorl.types import Workflow

LOCK_SECONDS = 60  # time for a worker that has lost the main process to save and exit
TRAIN_PREFIX = "train/"  # prefix of metrics of training steps


class TrialRecorder:
    """Recorder that reports the progress of a trial to its queue, until the queue asks to stop the trial.

    It reports every evaluation. If the score is a metric of training steps (train/NAME), it also reports as
    many points of these as there could be evaluations, since they cost nothing.
    """

    def __init__(self, queue: TrialQueue, definition: SweepDefinition, number: int, budget: Budget) -> None:
        self._queue, self._definition, self._number, self._budget = queue, definition, number, budget
        self._scores_steps, self._points = definition.score.startswith(TRAIN_PREFIX), definition.base["evaluations"]
        self._needs_steps = self._scores_steps or definition.cost.startswith(TRAIN_PREFIX)
        self._train_row: Row = {}
        self.last_share, self.used_share, self.is_behind = 0.0, 0.0, False
        self._failure = ""  # why the trial has failed

    @property
    def must_end(self) -> bool:
        """Return whether to end the trial, because it is behind the others or has failed."""
        return self.is_behind or bool(self._failure)

    def resume(self, progress: Progress) -> None:
        """Continue from the progress of a checkpoint, so that the same points are reported as without a stop.

        The points before it are reported again, since the main process may have been lost before it had all.
        """
        folder, kinds = get_trial_folder(self._queue.folder, self._number), ("train",) * self._needs_steps
        rows = [row for kind in (*kinds, "evaluation") for row in read_rows(folder, kind).rows]
        for row in sorted(rows, key=itemgetter("iteration")):
            if (point := self._find_point(row)) is not None:
                self._queue.observe(self._number, point)
        self.last_share = self._budget.compute_used_share(progress.usage)

    def __call__(self, row: Row) -> None:
        if not self.must_end and (point := self._find_point(row)) is not None:
            self.used_share = point.used_share
            self.is_behind = self._queue.observe(self._number, point)

    def _find_point(self, row: Row) -> Evaluation | None:
        """Return the point of the learning curve that a row adds, or None."""
        if row["kind"] == "train":
            self._train_row, before, self.last_share = row, self.last_share, row["progress"]
            if not self._scores_steps or int(self.last_share * self._points) <= int(before * self._points):
                return None
        elif self._needs_steps and not self._train_row:  # before the first training row
            return None
        cost, score = (self._read_metric(row, name) for name in (self._definition.cost, self._definition.score))
        if not math.isfinite(cost):
            problem = f"is {cost} after iteration {row['iteration']}, must be finite"
            self._failure = f"cost={self._definition.cost}: {problem}"
            return None
        return Evaluation(row["progress"], cost, score)

    def _read_metric(self, row: Row, name: str) -> float:
        row = self._train_row if name.startswith(TRAIN_PREFIX) else row
        value = row.get(name.removeprefix(TRAIN_PREFIX))
        return math.nan if value is None else float(value)

    def end(self, stopped: bool) -> None:
        """End the trial, unless its training was interrupted."""
        if self._failure:
            self._queue.end_trial(self._number, FAILED, message=self._failure)
        elif self.is_behind:
            self._queue.end_trial(self._number, STOPPED, self.used_share)
        elif not stopped:
            self._queue.end_trial(self._number, DONE)

    def close(self) -> None:
        """Do nothing, since every evaluation was reported already."""


def prepare_trial(definition: SweepDefinition, trial: SweepTrial, sweep: Path) -> tuple[dict[str, Any], Path]:
    """Return the configuration and the run directory of a trial, after writing the configuration there."""
    data, run_dir = definition.build_configuration(trial.values), get_trial_folder(sweep, trial.number)
    data = parts.resolve_auto(data)
    run_dir.mkdir(parents=True, exist_ok=True)
    config_file.write_config(data, run_dir)
    return data, run_dir


@contextmanager
def open_recorders(data: Mapping[str, Any], run_dir: Path, told: TrialRecorder) -> Iterator[list[recorders.Recorder]]:
    """Create the recorders of a trial, and close them at the end of the context."""
    seed = data["seed"]
    found: list[recorders.Recorder] = [recorders.JsonLines(run_dir), recorders.Csv(run_dir, seed), told]
    found += [recorders.TensorBoard(run_dir, seed)] if data["tensorboard"] else []
    with ExitStack() as stack:
        for one in found:
            stack.callback(one.close)
        yield found


def train_trial(queue: TrialQueue, definition: SweepDefinition, trial: SweepTrial, stop: Callable[[], bool]) -> None:
    """Train a trial, from its last checkpoint if it has one, and report its result to the queue.

    A trial that raises an error is marked as failed, except for OSError, which is raised, since nothing can
    be written, and LockedError, since a worker that lost the main process may still write.
    """
    try:
        data, run_dir = prepare_trial(definition, trial, queue.folder)
        workflow, budget = runs.build(data)
        budget = limit_budget(budget, workflow)
        told = TrialRecorder(queue, definition, trial.number, budget)
        with ExitStack() as stack:
            stack.enter_context(files.lock_run_dir(run_dir, "resume", LOCK_SECONDS))
            checkpoints = Checkpoints(run_dir / "checkpoints", **data["checkpoint"], report=lambda line: None)
            stack.callback(checkpoints.close)
            callbacks = stack.enter_context(open_recorders(data, run_dir, told))
            result = runs.fit_configuration(
                data,
                workflow,
                budget,
                callbacks,
                checkpoints=checkpoints,
                stop=lambda: told.must_end or stop(),
                measure=make_suite_measure(data.get("suite"), workflow),
            )
        told.end(result.stopped)
    except (OSError, LockedError):
        raise
    except Exception as error:  # a training can raise any error, also from XLA
        queue.end_trial(trial.number, FAILED, message=f"{error}".partition("\n")[0] or type(error).__name__)


def find_unmet_sweep_limits(definition: SweepDefinition) -> Iterator[str]:
    """Yield lines about limits of the smallest searched budget, or of the common budget, that cannot be kept."""
    lines: dict[str, None] = {}
    for values in definition.list_first_values():
        if (i := definition.space.budget_index) is not None:
            one = definition.space.parameters[i]
            values |= {one.name: one.decode(0.0)}
        data = definition.build_configuration(values)
        workflow, budget = runs.build(data)
        lines |= dict.fromkeys(dry_run.find_unmet_limits(workflow, budget, runs.get_chunk_size(data)))
    yield from lines


def list_metric_names(definition: SweepDefinition) -> set[str]:
    """Return the allowed names of score and cost: metrics of evaluation rows, and train/NAME for training steps.

    Nothing is compiled.

    Raises:
        OptionError: If a trial at the defaults cannot be trained, with any choice of config groups.
    """
    first, *others = (_list_metric_names(definition, values) for values in definition.list_first_values())
    return first.intersection(*others)


def _list_metric_names(definition: SweepDefinition, values: Mapping[str, Any]) -> set[str]:
    data = definition.build_configuration(values)
    workflow, budget = runs.build(data)
    rows = list[Row]()
    training_log = TrainingLog([data["seed"]], budget, [rows.append], False)
    trained, evaluated = _trace_metrics(data, workflow)
    training_log.record(make_row(training_log.progress, training_log.add_chunk(1, trained), "train", 0.0))
    training_log.record_evaluation(None, evaluated, 0.0)
    of_steps, of_evaluation = (row.keys() - {"kind", *CONTAINER_KEYS} for row in rows)
    return of_evaluation | {f"{TRAIN_PREFIX}{name}" for name in of_steps}


def _trace_metrics(data: Mapping[str, Any], workflow: Workflow) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return metrics of the shapes of those of one training step and of one evaluation; their values are 0."""
    program, measure = Program(workflow, [data["seed"]], 1, False), make_suite_measure(data.get("suite"), workflow)
    with explain_index_overflow(), explain_missing_numbers():
        state = jax.eval_shape(program.init, program.keys, resolve_numbers(workflow))
        _, trained, evaluated = jax.eval_shape(program.run, state, program.keys, *make_run_args(0, 0, False))
        light = split_replays(state)[0]
        if (env := parts.make_eval_env(data)) is not None:
            evaluated = jax.eval_shape(EvalEnvEvaluator(workflow, env), light, program.keys[0, 2])
        measured = {} if measure is None else jax.eval_shape(measure, light)
    zero = lambda metrics: {name: np.zeros(x.shape, x.dtype) for name, x in metrics.items()}  # noqa: E731
    return zero(trained), join_measures(zero(evaluated), zero(measured))
