"""Trainings by tasks into the folder of a run: of PSRO, and of what learns from rollouts."""

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import jax
import numpy as np

from evorl.distributed.coordinator import coordinate_psro
from evorl.distributed.executors import Executor
from evorl.distributed.results import ResultStore
from evorl.distributed.rollout_coordinator import RolloutIteration, coordinate_rollouts
from evorl.distributed.rollout_programs import LearnerState, RolloutSpec
from evorl.distributed.values import is_compatible, pack_value, unpack_value
from evorl.errors import OptionError, WorkerError, require
from evorl.leagues.psro import PSRO
from evorl.parts import resolve_numbers
from evorl.training import runs
from evorl.training.progress import Budget
from evorl.training.run_recorder import RunContext, RunRecorder, RunSchedule
from evorl.training.stopping import StopHandler
from evorl.tree import as_arrays
from evorl.workflows.on_policy import OnPolicy

RESULTS_FOLDER = "tasks"  # the folder of a run with what tasks have given, and what is kept beside checkpoints
PARTS, SEEN = "parts", "seen"


def train_psro(psro: PSRO, run: RunContext, executor: Executor, staleness: int) -> Iterator[RunRecorder]:
    """Trains PSRO, and yields what is recorded after each iteration and at the end; all come again where it goes on."""
    data = run.configuration
    iterations = psro.max_iterations if data["iterations"] is None else data["iterations"]
    schedule = RunSchedule(Budget(iterations=iterations), iterations)
    recorded = RunRecorder(psro, run, schedule)
    recorded.training_log.notify_resume()
    results = ResultStore(run.folder / RESULTS_FOLDER)
    for one in coordinate_psro(psro, executor, iterations, data["seed"], None, staleness, results):
        recorded.record_iteration(one)
        yield recorded
    recorded.close()
    yield recorded


def train_from_rollouts(
    workflow: OnPolicy, run: RunContext, executor: Executor, parts: int | None, workers: int
) -> Iterator[RunRecorder]:
    """Trains by rollouts in so many parts, by default one for each worker.

    It yields what is recorded after each iteration and at the end. It goes on from the newest checkpoint, in as many
    parts as before. A first signal asks it to save after a chunk, and to raise KeyboardInterrupt.
    """
    data, results = run.configuration, ResultStore(run.folder / RESULTS_FOLDER)

    def save_statistics(one: RolloutIteration) -> None:
        results.put(f"{SEEN}-{one.number}", pack_value(one.learner.stale_obs_statistics))
        results.trim(SEEN, data["checkpoint"]["keep"] + 1)

    iterations, chunk = count_iterations(workflow, data), runs.get_chunk_size(data)
    schedule = RunSchedule(parse_budget(data), iterations, chunk, data["evaluations"])
    recorded = RunRecorder(workflow, run, schedule, save_statistics)
    begin = _restore_learner(workflow, recorded, results)
    given = iterations, data["seed"], None, _resolve_num_parts(recorded, results, parts, workers), begin
    with StopHandler() as stopping, closing(coordinate_rollouts(workflow, executor, *given)) as trained:
        try:
            for one in trained:
                recorded.record_iteration(one)
                yield recorded
                if stopping() and recorded.last is one:
                    break
        except WorkerError:
            recorded.close()
            raise
        recorded.close()
        if not recorded.training_log.is_finished:
            raise KeyboardInterrupt
        yield recorded


def parse_budget(data: Mapping[str, Any]) -> Budget:
    """That of a training by rollouts; raises OptionError where it is none of iterations and env_steps."""
    for name in ("episodes", "minutes"):
        require(data[name] is None, name, data[name], "must be null: iterations and env_steps say when it ends")
    found = {name: data[name] for name in ("iterations", "env_steps") if data[name] is not None}
    if not found:
        raise OptionError("no budget: give iterations or env_steps")
    return Budget(**found)


def count_iterations(workflow: OnPolicy, data: Mapping[str, Any]) -> int:
    """How many a budget has; raises OptionError."""
    budget = parse_budget(data)
    return math.ceil(min(budget.iterations, budget.env_steps / workflow.num_transitions))


def _restore_learner(workflow: OnPolicy, recorded: RunRecorder, results: ResultStore) -> LearnerState | None:
    """What learns, as it was at the newest checkpoint; None where there is none yet."""
    given = resolve_numbers(workflow), as_arrays(workflow.env.default_params)
    shapes = RolloutSpec(workflow, 1, *given).build_programs().learner_shapes
    state = recorded.restore(shapes.state)
    if state is None:
        return None
    return LearnerState(state, _load_result(results, f"{SEEN}-{int(state.iteration)}", shapes.stale_obs_statistics))


def _load_result(results: ResultStore, name: str, shapes: Any) -> Any:
    """What is kept beside a checkpoint, of such shapes; raises OptionError where it is not there or another thing."""
    value = results.get(name)
    if value is None or not is_compatible(shapes, value):
        raise OptionError(
            f"resume: {RESULTS_FOLDER}/{name}.npz, which goes with the checkpoint, is not there or damaged"
        )
    return unpack_value(shapes, value)


def _resolve_num_parts(recorded: RunRecorder, results: ResultStore, given: int | None, workers: int) -> int:
    """In how many parts a run has begun, or begins; raises OptionError where another number is given."""
    parts = workers if given is None else given
    if recorded.checkpoints.latest_iteration is not None:
        parts = int(_load_result(results, PARTS, jax.ShapeDtypeStruct((), np.int32)))
    require(given in (None, parts), "parts", given, f"must be {parts}, in which this run has begun")
    results.put(PARTS, [np.array(parts, np.int32)])
    return parts
