"""Coordinator of distributed population-based training: workers train members, and this process selects."""

import time
from collections.abc import Generator
from typing import Any

import jax
import numpy as np

from evorl.distributed.executors import Executor, SerialExecutor, compute_parts
from evorl.distributed.iteration import Iteration
from evorl.distributed.population_programs import PopulationSpec
from evorl.distributed.task import MEMBERS, Task, format_members_name
from evorl.distributed.values import unpack_value
from evorl.errors import OptionError, require, require_int
from evorl.keys import key_from_seed
from evorl.parts import resolve_numbers
from evorl.tree import as_arrays
from evorl.workflows.pbt import PBT, PBTState
from evorl.workflows.vmapped import Vmapped


def coordinate_population(
    workflow: PBT,
    executor: Executor = SerialExecutor(),  # noqa: B008  immutable
    iterations: int = 100,
    seed: int = 0,
    env_params: Any = None,
    parts: int = 1,
    begin: PBTState | None = None,
) -> Generator[Iteration, None, None]:
    """Run population-based training whose members an executor trains, in separate parts of the population.

    A task consists of the states of some members and a random key. Its result is their states after a
    generation, and their metrics. The states, with their replay buffers, are sent in each generation.

    Members have the random keys of one process, so the results are those of `evorl.train` up to rounding,
    with any executor. Environments on the host start new episodes in each generation, since no other
    process can take them over.

    Args:
        workflow: PBT of a population of independent members.
        executor: Executor, which trains the parts.
        iterations: Number of generations, including those before `begin`.
        seed: Random seed.
        env_params: Environment parameters; None for the default parameters of the environment.
        parts: Number of parts of the population, which must divide its size.
        begin: State of a generation from which to continue; None to start a new training.

    Yields:
        The generations in their order.

    Raises:
        OptionError: If an option is not allowed.
        WorkerError: If a task fails in a worker, or workers die too often.
    """
    if not isinstance(workflow, PBT) or not isinstance(workflow.population, Vmapped):
        raise OptionError(f"agent={type(workflow).__name__}: must be PBT of independent members (Vmapped)")
    require_int("iterations", iterations)
    n = workflow.population.size
    require(parts >= 1 and n % parts == 0, "parts", parts, f"must divide population.size, {n}")
    params = None if env_params is None else as_arrays(env_params)
    programs = PopulationSpec(workflow, parts, resolve_numbers(workflow), params).build_programs()
    key_init, keys, _ = jax.random.split(key_from_seed(seed), 3)  # same keys as in a training in one program
    state, begun = programs.init(key_init) if begin is None else begin, time.perf_counter()
    with executor.start_workers(programs) as workers:
        for iteration in range(int(state.generation), iterations):
            key, plan = jax.random.fold_in(keys, iteration), workflow.plan(state, keys)[0]
            given = np.asarray(jax.random.key_data(key)), np.array([int(plan.steps), int(plan.evaluations)])
            names = [format_members_name(iteration, part) for part in range(parts)]
            for name, value in zip(names, programs.split_members(state), strict=True):
                workers.publish(name, value)
            tasks = [Task(MEMBERS, iteration, part, *given, (names[part],)) for part in range(parts)]
            found = [unpack_value(programs.result_shapes, value) for value in compute_parts(workers, tasks)]
            for name in names:
                workers.forget(name)
            state, metrics = programs.learned(state, found, key)
            yield Iteration(iteration + 1, state, metrics, time.perf_counter() - begun)
