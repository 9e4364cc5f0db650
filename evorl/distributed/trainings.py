"""Trainings by tasks into the folder of a run: of PSRO, and of what learns from rollouts."""

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import jax
import numpy as np

from evorl.distributed.coordinator import coordinate
from evorl.distributed.executors import Executor
from evorl.distributed.learning import Learned, coordinate_rollouts
from evorl.distributed.recorded import Recorded, Run, Schedule
from evorl.distributed.results import Results
from evorl.distributed.rollouts import Learner, RolloutSpec
from evorl.distributed.values import fits, packed, unpacked
from evorl.errors import OptionError, WorkerError, require
from evorl.hyperparameters import as_state
from evorl.training import runs
from evorl.training.progress import Budget
from evorl.training.stopping import Stopping
from evorl.workflows.on_policy import OnPolicy
from evorl.workflows.psro import PSRO

RESULTS = "tasks"  # the folder of a run with what tasks have given, and what is kept beside checkpoints
PARTS, SEEN = "parts", "seen"


def league(psro: PSRO, hyperparams: Any, run: Run, executor: Executor, staleness: int) -> Iterator[Recorded]:
    """Trains PSRO, and yields what is recorded after each iteration and at the end; all come again where it goes on."""
    data = run.data
    iterations = psro.most_iterations if data["iterations"] is None else data["iterations"]
    schedule = Schedule(Budget(iterations=iterations), iterations)
    recorded = Recorded(psro, hyperparams, run, schedule)
    recorded.journal.resume()
    results = Results(run.folder / RESULTS)
    for one in coordinate(psro, executor, iterations, data["seed"], hyperparams, None, staleness, results):
        recorded.add(one)
        yield recorded
    recorded.close()
    yield recorded


def rollouts(
    workflow: OnPolicy, hyperparams: Any, run: Run, executor: Executor, parts: int | None, workers: int
) -> Iterator[Recorded]:
    """Trains by rollouts in so many parts, by default one for each worker.

    It yields what is recorded after each iteration and at the end. It goes on from the newest checkpoint, in as many
    parts as before. A first signal asks it to save after a chunk, and to raise KeyboardInterrupt.
    """
    data, results = run.data, Results(run.folder / RESULTS)

    def keeps(one: Learned) -> None:
        results.put(f"{SEEN}-{one.number}", packed(one.learner.seen))
        results.trim(SEEN, data["checkpoint"]["keep"] + 1)

    iterations, chunk = iterations_of(workflow, data), runs.chunk(data)
    schedule = Schedule(budget_of(data), iterations, chunk, data["evaluations"])
    recorded = Recorded(workflow, hyperparams, run, schedule, keeps)
    begin = _restored(workflow, hyperparams, recorded, results)
    given = iterations, data["seed"], hyperparams, None, _parts(recorded, results, parts, workers), begin
    with Stopping() as stopping, closing(coordinate_rollouts(workflow, executor, *given)) as trained:
        try:
            for one in trained:
                recorded.add(one)
                yield recorded
                if stopping() and recorded.last is one:
                    break
        except WorkerError:
            recorded.close()
            raise
        recorded.close()
        if not recorded.journal.finished:
            raise KeyboardInterrupt
        yield recorded


def budget_of(data: Mapping[str, Any]) -> Budget:
    """That of a training by rollouts; raises OptionError where it is none of iterations and env_steps."""
    for name in ("episodes", "minutes"):
        require(data[name] is None, name, data[name], "must be null: iterations and env_steps say when it ends")
    found = {name: data[name] for name in ("iterations", "env_steps") if data[name] is not None}
    if not found:
        raise OptionError("no budget: give iterations or env_steps")
    return Budget(**found)


def iterations_of(workflow: OnPolicy, data: Mapping[str, Any]) -> int:
    """How many a budget has; raises OptionError."""
    budget = budget_of(data)
    return math.ceil(min(budget.iterations, budget.env_steps / workflow.num_rows))


def _restored(workflow: OnPolicy, hyperparams: Any, recorded: Recorded, results: Results) -> Learner | None:
    """What learns, as it was at the newest checkpoint; None where there is none yet."""
    given = as_state(hyperparams), as_state(workflow.env.default_params)
    shapes = RolloutSpec(workflow, 1, *given).programs().shapes
    state = recorded.restored(shapes.state)
    if state is None:
        return None
    return Learner(state, _kept(results, f"{SEEN}-{int(state.iteration)}", shapes.seen))


def _kept(results: Results, name: str, shapes: Any) -> Any:
    """What is kept beside a checkpoint, of such shapes; raises OptionError where it is not there or another thing."""
    value = results.get(name)
    if value is None or not fits(shapes, value):
        raise OptionError(f"resume: {RESULTS}/{name}.npz, which goes with the checkpoint, is not there or damaged")
    return unpacked(shapes, value)


def _parts(recorded: Recorded, results: Results, given: int | None, workers: int) -> int:
    """In how many parts a run has begun, or begins; raises OptionError where another number is given."""
    parts = workers if given is None else given
    if recorded.checkpoints.latest is not None:
        parts = int(_kept(results, PARTS, jax.ShapeDtypeStruct((), np.int32)))
    require(given in (None, parts), "parts", given, f"must be {parts}, in which this run has begun")
    results.put(PARTS, [np.array(parts, np.int32)])
    return parts
