"""Distributed training into the folder of a run: PSRO, rollouts of an on-policy workflow, or a population."""

import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from evorl.distributed.coordinator import coordinate_psro
from evorl.distributed.evolution_coordinator import coordinate_evolution
from evorl.distributed.executors import Executor
from evorl.distributed.population_coordinator import coordinate_population
from evorl.distributed.results import ResultStore
from evorl.distributed.rollout_coordinator import RolloutIteration, coordinate_rollouts
from evorl.distributed.rollout_programs import LearnerState, RolloutSpec
from evorl.distributed.values import is_compatible, pack_value, unpack_value
from evorl.errors import OptionError, WorkerError, require
from evorl.leagues.psro import PSRO
from evorl.parts import resolve_numbers
from evorl.training import runs
from evorl.training.progress import Budget
from evorl.training.run_recorder import IterationResult, RunContext, RunRecorder, RunSchedule
from evorl.training.stopping import StopHandler
from evorl.tree import as_arrays
from evorl.workflows.evolution import Evolution
from evorl.workflows.on_policy import OnPolicy
from evorl.workflows.pbt import PBT

RESULTS_FOLDER = "tasks"  # folder, in that of a run, of results and of values that belong to checkpoints
PARTS, SEEN = "parts", "seen"


def train_psro(psro: PSRO, run: RunContext, executor: Executor, staleness: int) -> Iterator[RunRecorder]:
    """Train PSRO; yield the recorder after each iteration and at the end.

    A resumed run yields all iterations again.
    """
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
    """Train with rollouts in several parts, by default one per worker; yield the recorder after each iteration.

    The recorder is also yielded at the end. A run continues from its newest checkpoint, with the same number
    of parts. A first stop signal saves after the current chunk and raises KeyboardInterrupt.
    """
    data, results = run.configuration, ResultStore(run.folder / RESULTS_FOLDER)

    def save_statistics(one: RolloutIteration) -> None:
        """Store the observation statistics of the stale policies, which a checkpoint does not contain."""
        results.put(f"{SEEN}-{one.number}", pack_value(one.learner.stale_obs_statistics))
        results.trim(SEEN, data["checkpoint"]["keep"] + 1)

    iterations, chunk = count_iterations(workflow, data), runs.get_chunk_size(data)
    budget = replace(parse_budget(data), iterations=iterations)  # also if lost steps leave too few env_steps
    recorded = RunRecorder(workflow, run, RunSchedule(budget, iterations, chunk, data["evaluations"]), save_statistics)
    begin = _restore_learner(workflow, recorded, results)
    given = iterations, data["seed"], None, _resolve_num_parts(recorded, results, parts, workers), begin
    yield from _record(recorded, coordinate_rollouts(workflow, executor, *given))


def train_by_parts(
    workflow: Evolution | PBT, run: RunContext, executor: Executor, parts: int | None, workers: int
) -> Iterator[RunRecorder]:
    """Train a population in several parts, by default one per worker; yield the recorder after each iteration.

    The recorder is also yielded at the end. A run continues from its newest checkpoint, with the same number
    of parts. A first stop signal saves after the current chunk and raises KeyboardInterrupt.
    """
    data, results = run.configuration, ResultStore(run.folder / RESULTS_FOLDER)
    iterations, chunk = parse_iterations(data), runs.get_chunk_size(data)
    schedule = RunSchedule(Budget(iterations=iterations), iterations, chunk, data["evaluations"])
    recorded = RunRecorder(workflow, run, schedule)
    init = partial(workflow.init, jax.random.key(0), resolve_numbers(workflow))
    begin = recorded.restore(jax.eval_shape(init), init)
    options = iterations, data["seed"], None, _resolve_num_parts(recorded, results, parts, workers), begin
    trained = (
        coordinate_population(workflow, executor, *options)
        if isinstance(workflow, PBT)
        else coordinate_evolution(workflow, executor, *options)
    )
    yield from _record(recorded, trained)


def _record(recorded: RunRecorder, iterations: Generator[IterationResult, None, None]) -> Iterator[RunRecorder]:
    """Record iterations until the budget is used or a signal asks to stop, and save the last one."""
    with StopHandler() as stopping, closing(iterations) as trained:
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


def parse_iterations(data: Mapping[str, Any]) -> int:
    """Return the number of iterations of a training; raise OptionError if it has no such budget, or another one."""
    for name in ("env_steps", "episodes", "minutes"):
        require(data[name] is None, name, data[name], "must be null; use iterations")
    if data["iterations"] is None:
        raise OptionError("no budget: give iterations")
    return int(data["iterations"])


def parse_budget(data: Mapping[str, Any]) -> Budget:
    """Return the budget of a training with rollouts; raise OptionError if it has other limits or none.

    The limits can be iterations and env_steps.
    """
    for name in ("episodes", "minutes"):
        require(data[name] is None, name, data[name], "must be null; use iterations or env_steps")
    found = {name: data[name] for name in ("iterations", "env_steps") if data[name] is not None}
    if not found:
        raise OptionError("no budget: give iterations or env_steps")
    return Budget(**found)


def count_iterations(workflow: OnPolicy, data: Mapping[str, Any]) -> int:
    """Return the number of iterations of a training with rollouts; raise OptionError as `parse_budget` does."""
    budget = parse_budget(data)
    return math.ceil(min(budget.iterations, budget.env_steps / workflow.num_transitions))


def _restore_learner(workflow: OnPolicy, recorded: RunRecorder, results: ResultStore) -> LearnerState | None:
    """Return the learner at the newest checkpoint; None if there is no checkpoint."""
    given = resolve_numbers(workflow), as_arrays(workflow.env.default_params)
    shapes = RolloutSpec(workflow, 1, *given).build_programs().learner_shapes
    state = recorded.restore(shapes.state)
    if state is None:
        return None
    return LearnerState(state, _load_result(results, f"{SEEN}-{int(state.iteration)}", shapes.stale_obs_statistics))


def _load_result(results: ResultStore, name: str, shapes: Any) -> Any:
    """Return a stored value that belongs to a checkpoint; raise OptionError if it is missing or has other shapes."""
    value = results.get(name)
    if value is None or not is_compatible(shapes, value):
        raise OptionError(
            f"resume: {RESULTS_FOLDER}/{name}.npz, which belongs to the checkpoint, is missing or damaged"
        )
    return unpack_value(shapes, value)


def _resolve_num_parts(recorded: RunRecorder, results: ResultStore, given: int | None, workers: int) -> int:
    """Return the number of parts of a new or resumed run; raise OptionError if another number is given on resuming."""
    parts = workers if given is None else given
    if recorded.checkpoints.latest_iteration is not None:
        parts = int(_load_result(results, PARTS, jax.ShapeDtypeStruct((), np.int32)))
    require(given in (None, parts), "parts", given, f"must be {parts}, as at the start of this run")
    results.put(PARTS, [np.array(parts, np.int32)])
    return parts
