"""Trainings by tasks into the folder of a run: of PSRO, and of what learns from rollouts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from evorl.distributed.coordinator import coordinate
from evorl.distributed.executors import Executor
from evorl.distributed.learning import Learned, coordinate_rollouts
from evorl.distributed.recorded import Recorded
from evorl.distributed.results import Results
from evorl.distributed.rollouts import Learner, RolloutSpec
from evorl.distributed.values import packed, unpacked
from evorl.errors import OptionError, WorkerError, require
from evorl.hyperparameters import as_state
from evorl.training.stopping import Stopping
from evorl.workflows.on_policy import OnPolicy
from evorl.workflows.psro import PSRO

RESULTS = "tasks"  # the folder of a run with what tasks have given, and what is kept beside checkpoints
PARTS, SEEN = "parts", "seen"


def league(
    psro: PSRO,
    hyperparams: Any,
    data: Mapping[str, Any],
    run_dir: Path,
    recorders: Sequence[Any],
    executor: Executor,
    staleness: int,
) -> Iterator[None]:
    """Trains PSRO, and yields after each iteration that is recorded; all come again where it goes on."""
    iterations = psro.most_iterations if data["iterations"] is None else data["iterations"]
    recorded = Recorded(psro, data, run_dir, iterations, recorders)
    recorded.journal.resume()
    results = Results(run_dir / RESULTS)
    for one in coordinate(psro, executor, iterations, data["seed"], hyperparams, None, staleness, results):
        recorded.add(one)
        yield
    recorded.close()


def rollouts(
    workflow: OnPolicy,
    hyperparams: Any,
    data: Mapping[str, Any],
    run_dir: Path,
    recorders: Sequence[Any],
    executor: Executor,
    parts: int | None,
    workers: int,
) -> Iterator[None]:
    """Trains by rollouts in so many parts, by default one for each worker, and yields after each iteration.

    Where it goes on, then from the newest checkpoint, in as many parts as before. A first signal asks it to save after
    a chunk, and to raise KeyboardInterrupt.
    """
    results = Results(run_dir / RESULTS)

    def keeps(one: Learned) -> None:
        results.put(f"{SEEN}-{one.number}", packed(one.learner.seen))
        results.trim(SEEN, data["checkpoint"]["keep"] + 1)

    iterations, chunk = iterations_of(workflow, data), data["chunk"] or data["agent"].get("chunk", 1)
    recorded = Recorded(workflow, data, run_dir, iterations, recorders, chunk, data["evaluations"], keeps)
    begin = _restored(workflow, hyperparams, recorded, results)
    given = iterations, data["seed"], hyperparams, None, _parts(results, parts, workers), begin
    with Stopping() as stopping, closing(coordinate_rollouts(workflow, executor, *given)) as trained:
        try:
            for one in trained:
                recorded.add(one)
                yield
                if stopping() and recorded.last is one:
                    break
        except WorkerError:
            recorded.close()
            raise
        recorded.close()
        if not recorded.journal.finished:
            raise KeyboardInterrupt


def iterations_of(workflow: OnPolicy, data: Mapping[str, Any]) -> int:
    """How many a budget has; raises OptionError where it is none of iterations and env_steps."""
    for name in ("episodes", "minutes"):
        require(data[name] is None, name, data[name], "must be null: iterations and env_steps say when it ends")
    each = {"iterations": 1, "env_steps": workflow.num_rows}
    found = [math.ceil(data[name] / size) for name, size in each.items() if data[name] is not None]
    if not found:
        raise OptionError("no budget: give iterations or env_steps")
    return min(found)


def _restored(workflow: OnPolicy, hyperparams: Any, recorded: Recorded, results: Results) -> Learner | None:
    """What learns, as it was at the newest checkpoint; None where there is none yet."""
    given = as_state(hyperparams), as_state(workflow.env.default_params)
    shapes = RolloutSpec(workflow, 1, *given).programs().shapes
    state = recorded.restored(shapes.state)
    if state is None:
        return None
    names = PARTS, f"{SEEN}-{int(state.iteration)}"
    kept = [value for name in names if (value := results.get(name)) is not None]
    if len(kept) < len(names):
        where = f"{RESULTS}/{names[0]}.npz or {names[1]}.npz"
        raise OptionError(f"resume: {where}, which go with the checkpoint, is not there or damaged")
    return Learner(state, unpacked(shapes.seen, kept[1]))


def _parts(results: Results, given: int | None, workers: int) -> int:
    """In how many parts a run has begun, or begins; raises OptionError where another number is given."""
    kept = results.get(PARTS)
    parts = int(kept[0]) if kept is not None else workers if given is None else given
    require(given in (None, parts), "parts", given, f"must be {parts}, in which this run has begun")
    results.put(PARTS, [np.array(parts)])
    return parts
