"""Coordinator of distributed evolution: workers evaluate individuals, and this process learns from their fitness."""

import time
from collections.abc import Generator
from typing import Any

import jax
import numpy as np

from evorl.distributed.evolution_programs import EvolutionSpec, split_population
from evorl.distributed.executors import Executor, SerialExecutor, compute_parts
from evorl.distributed.iteration import Iteration
from evorl.distributed.task import FITNESS, Task, format_state_name
from evorl.distributed.values import pack_value, unpack_value
from evorl.errors import OptionError, require, require_int
from evorl.keys import key_from_seed
from evorl.parts import resolve_numbers
from evorl.tree import resolve_env_params
from evorl.workflows.evolution import Evolution, EvolutionState


def coordinate_evolution(
    workflow: Evolution,
    executor: Executor = SerialExecutor(),  # noqa: B008  immutable
    iterations: int = 100,
    seed: int = 0,
    env_params: Any = None,
    parts: int = 1,
    begin: EvolutionState | None = None,
) -> Generator[Iteration, None, None]:
    """Run an evolution whose individuals an executor evaluates, in separate parts of the population.

    A task consists of the state of the search and a random key, from which a worker samples the population,
    and of the part that it evaluates. Its result is the episode statistics of that part. Environments may run
    on the host: each worker has its own.

    The results depend on the workflow, the seed and the number of parts, but neither on who evaluates a part
    nor on the order. They are those of one process, up to rounding.

    Args:
        workflow: Evolution.
        executor: Executor, which evaluates the parts.
        iterations: Number of iterations, including those before `begin`.
        seed: Random seed.
        env_params: Environment parameters; None for the default parameters of the environment.
        parts: Number of parts of the population, which must divide its size.
        begin: State of an iteration from which to continue; None to start a new training.

    Yields:
        The iterations in their order.

    Raises:
        OptionError: If an option is not allowed.
        WorkerError: If a task fails in a worker, or workers die too often.
    """
    if not isinstance(workflow, Evolution):
        raise OptionError(f"agent={type(workflow).__name__}: must be Evolution, which learns from fitness")
    require_int("iterations", iterations)
    n = workflow.evolver.population_size
    require(parts >= 1 and n % parts == 0, "parts", parts, f"must divide population_size, {n}")
    params = resolve_env_params(workflow.env, env_params)
    spec = EvolutionSpec(split_population(workflow, parts), resolve_numbers(workflow), params)
    programs, begun = spec.build_programs(), time.perf_counter()
    key_init, steps, _ = jax.random.split(key_from_seed(seed), 3)  # same keys as in a training in one program
    state = programs.init(key_init) if begin is None else begin
    with executor.start_workers(programs) as workers:
        for iteration in range(int(state.iteration), iterations):
            key, name = jax.random.fold_in(steps, iteration), format_state_name(iteration)
            workers.publish(name, pack_value(state))
            data = np.asarray(jax.random.key_data(key))
            tasks = [Task(FITNESS, iteration, part, data, np.array(part), (name,)) for part in range(parts)]
            found = [unpack_value(programs.result_shapes, value) for value in compute_parts(workers, tasks)]
            workers.forget(name)
            state, metrics = programs.learned(state, found, key)
            yield Iteration(iteration + 1, state, metrics, time.perf_counter() - begun)
