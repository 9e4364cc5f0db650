"""A trial as a training of its own."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax

from evorl.metrics import COUNTS, MEMBERS
from evorl.sweeps.definition import Definition
from evorl.sweeps.store import Store, folder_of
from evorl.sweeps.trials import DONE, FAILED, STOPPED, Evaluation, Trial
from evorl.training import plan, runs
from evorl.training.configuration import parts, saved
from evorl.training.fit import fit
from evorl.training.plan import indexing, reading
from evorl.training.program import Program, job
from evorl.training.progress import Budget, Progress
from evorl.training.records import files, recorders
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import SECONDS, Row
from evorl.training.suites import in_training

TRAIN = "train/"  # begins the names of metrics of steps


class Told:
    """A recorder that tells a store how a trial fares, until it is said to stop.

    It tells of every evaluation; where the score is one of steps (train/NAME), of as many points of the steps too as
    there could be evaluations, since they cost nothing.
    """

    def __init__(self, store: Store, definition: Definition, number: int, budget: Budget) -> None:
        self._store, self._definition, self._number, self._budget = store, definition, number, budget
        self._of_steps, self._points = definition.score.startswith(TRAIN), definition.base["evaluations"]
        self._needs_steps = self._of_steps or definition.cost.startswith(TRAIN)
        self._trained: Row = {}
        self.before, self.used, self.behind = 0.0, 0.0, False

    def resume(self, progress: Progress) -> None:
        """Begins where a checkpoint was, so that the same points are told as without a stop."""
        self.before = self._budget.used(progress.mark)

    def __call__(self, row: Row) -> None:
        if row["kind"] == "train":
            self._trained, before, self.before = row, self.before, row["progress"]
            if not self._of_steps or int(self.before * self._points) <= int(before * self._points):
                return
        elif self._needs_steps and not self._trained:  # before the first one
            return
        if not self.behind:
            self.used = row["progress"]
            cost, score = (self._of(row, name) for name in (self._definition.cost, self._definition.score))
            self.behind = self._store.observe(self._number, Evaluation(self.used, cost, score))

    def _of(self, row: Row, name: str) -> float:
        row = self._trained if name.startswith(TRAIN) else row
        value = row.get(name.removeprefix(TRAIN))
        return math.nan if value is None else float(value)

    def end(self, stopped: bool) -> None:
        """Ends the trial, unless its training was interrupted."""
        if self.behind:
            self._store.end(self._number, STOPPED, self.used)
        elif not stopped:
            self._store.end(self._number, DONE)

    def close(self) -> None:
        """Every evaluation is in the store already."""


def opened(definition: Definition, trial: Trial, sweep: Path) -> tuple[dict[str, Any], Path]:
    """The configuration of a trial, and its folder, in which that is written."""
    data, run_dir = definition.configuration(trial.values), folder_of(sweep, trial.number)
    run_dir.mkdir(parents=True, exist_ok=True)
    saved.write(data, run_dir)
    return data, run_dir


@contextmanager
def recording(data: Mapping[str, Any], run_dir: Path, told: Told) -> Iterator[list[recorders.Recorder]]:
    """The recorders of a trial, closed at the end."""
    seed = data["seed"]
    found: list[recorders.Recorder] = [recorders.JsonLines(run_dir), recorders.Csv(run_dir, seed), told]
    found += [recorders.TensorBoard(run_dir, seed)] if data["tensorboard"] else []
    with ExitStack() as stack:
        for one in found:
            stack.callback(one.close)
        yield found


def train(store: Store, definition: Definition, trial: Trial, stop: Callable[[], bool]) -> None:
    """Trains a trial, from its last checkpoint on where it has one, and tells the store.

    What cannot be trained has failed; where nothing can be written OSError is raised.
    """
    try:
        data, run_dir = opened(definition, trial, store.folder)
        workflow, hyperparams, budget = runs.build(data)
        told = Told(store, definition, trial.number, budget)
        checkpoints = Checkpoints(run_dir / "checkpoints", **data["checkpoint"], report=lambda line: None)
        with ExitStack() as stack:
            stack.enter_context(files.locked(run_dir, "resume"))
            stack.callback(checkpoints.close)
            callbacks = stack.enter_context(recording(data, run_dir, told))
            result = fit(
                workflow,
                hyperparams,
                data["seed"],
                budget,
                callbacks,
                num_seeds=data["num_seeds"],
                evaluations=data["evaluations"],
                evaluation_share=data["evaluation_share"],
                chunk=runs.chunk(data),
                checkpoints=checkpoints,
                stop=lambda: told.behind or stop(),
                keep_rows=False,
                devices=data["devices"],
                measure=in_training(data.get("suite"), workflow),
                eval_env=parts.evaluated(data),
            )
        told.end(result.stopped)
    except OSError:
        raise
    except Exception as error:  # of a training everything may be raised, by XLA too
        store.end(trial.number, FAILED, message=f"{error}".partition("\n")[0] or type(error).__name__)


def unkept(definition: Definition) -> Iterator[str]:
    """Give lines about what of the smallest budget that is searched, or of that of all trials, cannot be kept."""
    values = definition.space.defaults
    if (i := definition.space.budget) is not None:
        one = definition.space.parameters[i]
        values |= {one.name: one.decode(0.0)}
    data = definition.configuration(values)
    workflow, _, budget = runs.build(data)
    yield from plan.unkept(workflow, budget, runs.chunk(data))


def metrics(definition: Definition) -> set[str]:
    """What a score or a cost may be: the numbers of the rows of evaluations, and train/NAME of steps.

    Nothing is compiled. Raises OptionError where the trial of the defaults cannot be trained.
    """
    data = definition.configuration(definition.space.defaults)
    workflow, hyperparams, _ = runs.build(data)
    program = Program(workflow, [data["seed"]], 1, False)
    with indexing(), reading("agent.hyperparams"):
        state = jax.eval_shape(program.init, program.keys, hyperparams)
        _, trained, evaluated = jax.eval_shape(program.run, state, program.keys, *job(0, 0, False))
    found = {"iteration", "seconds", *SECONDS} | {name for name in trained if name in COUNTS}
    found |= set(evaluated) | {f"{TRAIN}{name}" for name in trained}
    return {name for name in found if MEMBERS not in name}
