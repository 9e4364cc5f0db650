"""Coordinator of distributed PSRO, which requests best responses and payoffs, and updates the mixtures."""

import itertools
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.distributed import task as names
from evorl.distributed.executors import Executor, SerialExecutor, TaskWorkers
from evorl.distributed.iteration import Iteration
from evorl.distributed.programs import PSROPrograms, PSROSpec
from evorl.distributed.results import ResultStore
from evorl.distributed.task import BEST_RESPONSE, PAYOFF, Task, Value
from evorl.distributed.values import is_compatible, pack_value, unpack_value
from evorl.errors import OptionError, require, require_int
from evorl.keys import key_from_seed
from evorl.leagues.oracles import DivisibleOracle, sum_counts, zero_counts
from evorl.leagues.payoffs import Payoffs
from evorl.leagues.psro import PSRO
from evorl.parts import resolve_numbers
from evorl.tree import resolve_env_params
from evorl.types import Metrics

PROFILES_PER_TASK = 16
AGE, SECONDS = jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((), np.float64)


def coordinate_psro(
    psro: PSRO,
    executor: Executor = SerialExecutor(),  # noqa: B008  immutable
    iterations: int | None = None,
    seed: int = 0,
    env_params: Any = None,
    staleness: int = 0,
    results: ResultStore | None = None,
) -> Iterator[Iteration]:
    """Run PSRO with tasks that an executor computes.

    With staleness=0, the results depend neither on the order in which tasks end nor on who computes them.
    They are bitwise identical if all workers have the same number of threads. With a larger staleness, best
    responses start as soon as the previous ones are complete, before all payoffs of the previous policies are
    known.

    Results of tasks are stored in `results`. The same call with the same store continues from them.

    Args:
        psro: PSRO, whose oracle must be able to answer for one player at a time.
        executor: Executor, which computes the tasks.
        iterations: Number of iterations; None to continue until the pool is full.
        seed: Random seed.
        env_params: Environment parameters; None for the default parameters of the game.
        staleness: Maximum number of policies of a player that may be missing in the payoff table to which
            best responses respond (the metric "age").
        results: Store of the results; None to store nothing.

    Yields:
        The iterations in their order.

    Raises:
        OptionError: If an option is not allowed, or the stored results belong to another training.
        WorkerError: If a task fails in a worker, or workers die too often.
    """
    most = psro.max_iterations
    iterations = most if iterations is None else iterations
    full = f"must be from 1 to {most}, when the policy pool is full; use a larger capacity"
    require(1 <= iterations <= most, "iterations", iterations, full)
    require_int("staleness", staleness, 0)
    require(type(psro) is PSRO, "agent", type(psro).__name__, "must be PSRO, whose iterations consist of tasks")
    if not isinstance(psro.oracle, DivisibleOracle):
        raise OptionError(
            f"oracle={type(psro.oracle).__name__}: must compute the best responses of players one at a time"
        )
    spec = PSROSpec(psro, resolve_numbers(psro), resolve_env_params(psro.env, env_params))
    coordinator = PSROCoordinator(spec.build_programs(), seed, staleness, results or ResultStore())
    with executor.start_workers(coordinator.programs) as workers:
        yield from coordinator.run(workers, iterations)


class PSROCoordinator:
    """State of a training: the results of its tasks so far, and the tasks that are requested."""

    def __init__(self, programs: PSROPrograms, seed: int, staleness: int, results: ResultStore) -> None:
        self.programs, self.psro, self.staleness, self.results = programs, programs.psro, staleness, results
        self.players = self.psro.roles.num_players
        key_init, self.steps, _ = jax.random.split(key_from_seed(seed), 3)  # same keys as in a training in one program
        key_first, self.key_pay = jax.random.split(key_init)
        # pool and oracle_state are the newest; weights and payoffs are those of the last meta-strategy
        self.state = programs.init_state(key_first)
        self.filled, self.solved = 1, 0  # number of versions in the pool, and of those in the meta-strategy
        self.table = jax.tree.map(np.array, self.state.payoffs)
        self.found: dict[int, Any] = {}  # best responses of the next version, by player
        self.answered: dict[int, tuple[Any, Metrics, int]] = {}  # by version: weights, counts, age
        self.missing: dict[int, int] = {}  # number of payoff tasks that are not complete, by version
        self.played: dict[int, Metrics] = {}  # counts of the payoff tasks, by version
        self.ready: deque[tuple[Task, Value]] = deque()  # stored results that are not processed yet
        self.asked = self.age = 0  # version of the requested best responses, and age of their payoff table
        self.weights = np.asarray(self.state.weights)  # mixtures to which they respond
        self.paid = programs.get_payoff_shapes(PROFILES_PER_TASK)  # shapes of the result of a payoff task
        self.began = time.perf_counter()

    def run(self, workers: TaskWorkers, iterations: int) -> Iterator[Iteration]:
        """Yield the iterations in their order."""
        self._check_initial_policies()
        self._publish_policies(workers)
        self._request_payoffs(workers)
        while self.solved <= iterations:
            if self.asked < self.filled <= min(iterations, self.solved + self.staleness):
                self._request_best_responses(workers)
            if self.ready:
                task, value = self.ready.popleft()
            else:
                task, value = workers.wait_for_result()
                value = self._store_result(task, value)
            self._process_result(task, value, workers)
            while self.missing.get(self.solved) == 0:
                yield from self._update_meta_strategy()

    def _check_initial_policies(self) -> None:
        """Raise OptionError if the stored results belong to a training with other initial policies."""
        first, kept = pack_value(self.state.pool), self.results.get("first")
        if kept is None:
            self.results.put("first", first)
        elif len(first) != len(kept) or not all(map(np.array_equal, first, kept)):
            raise OptionError("resume: the stored results are from another training, with other initial policies")

    def _submit_or_reuse(self, task: Task, workers: TaskWorkers) -> None:
        kept = self.results.get(task.name)
        if kept is not None and is_compatible(self._get_value_shapes(task), kept):
            self.ready.append((task, kept))
        else:
            workers.submit(task)

    def _get_value_shapes(self, task: Task) -> Any:
        """Return the shapes of the stored result of a task.

        A best response is stored with the weights to which it responds and the age of their payoff table.
        """
        if task.kind == PAYOFF:
            return self.paid
        weights = jax.ShapeDtypeStruct(self.weights.shape, self.weights.dtype)
        return self.programs.get_response_shapes(task.part), weights, AGE

    def _publish_policies(self, workers: TaskWorkers) -> None:
        """Publish the newest policies to the workers."""
        version = self.filled - 1
        workers.publish(
            names.format_policies_name(version), pack_value(jax.tree.map(lambda x: x[version], self.state.pool))
        )
        if jax.tree.leaves(self.state.oracle_state):
            workers.publish(names.format_oracle_name(version), pack_value(self.state.oracle_state))
            workers.forget(names.format_oracle_name(version - 1))

    def _list_policy_names(self, versions: int) -> tuple[str, ...]:
        return tuple(map(names.format_policies_name, range(versions)))

    def _request_best_responses(self, workers: TaskWorkers) -> None:
        """Request best responses to the newest mixtures."""
        version = self.asked = self.filled
        self.age, self.weights = version - self.solved, np.asarray(self.state.weights)
        given = np.asarray(self.programs.answered(self.state))
        key = np.asarray(jax.random.key_data(self._make_keys(version)[0]))
        reads = self._list_policy_names(version) + (names.format_oracle_name(version - 1),) * bool(
            jax.tree.leaves(self.state.oracle_state)
        )
        for player in range(self.players):
            self._submit_or_reuse(Task(BEST_RESPONSE, version, player, key, given, reads), workers)

    def _request_payoffs(self, workers: TaskWorkers) -> None:
        """Request the payoffs of all profiles that contain one of the newest policies."""
        version = self.filled - 1
        every = itertools.product(range(version + 1), repeat=self.players)
        new = np.array([one for one in every if max(one) == version], np.int32)
        key = self._make_keys(version)[1]
        batches = range(0, len(new), PROFILES_PER_TASK)
        self.missing[version] = len(batches)
        for part, start in enumerate(batches):
            profiles = new[np.minimum(np.arange(start, start + PROFILES_PER_TASK), len(new) - 1)]
            one = np.asarray(jax.random.key_data(jax.random.fold_in(key, part)))
            self._submit_or_reuse(
                Task(PAYOFF, version, part, one, profiles, self._list_policy_names(version + 1)), workers
            )

    def _make_keys(self, version: int) -> jax.Array:
        """Return the keys of the best responses and of the payoffs of a version."""
        if not version:
            return jnp.stack([self.key_pay, self.key_pay])  # the initial policies are no best responses
        return jax.random.split(jax.random.fold_in(self.steps, version - 1))

    def _store_result(self, task: Task, value: Value) -> Value:
        """Store the result of a task and return the stored value."""
        if task.kind == BEST_RESPONSE:
            value = [*value, self.weights, np.array(self.age, np.int32)]
        self.results.put(task.name, value)
        return value

    def _process_result(self, task: Task, value: Value, workers: TaskWorkers) -> None:
        """Process the result of a task, and request the tasks that depend on it."""
        if task.kind == PAYOFF:
            cells, spent = unpack_value(self.paid, value)
            for table, of_cells in zip(jax.tree.leaves(self.table), jax.tree.leaves(cells), strict=True):
                table[(slice(None), *task.payload.T)] = np.asarray(of_cells).T
            self.played[task.version] = sum_counts([self.played.get(task.version, zero_counts()), spent])
            self.missing[task.version] -= 1
            return
        self.found[task.part] = unpack_value(self._get_value_shapes(task), value)
        if len(self.found) == self.players:
            self._add_policies(workers)

    def _add_policies(self, workers: TaskWorkers) -> None:
        """Add the policies of a version to the pool."""
        found = [self.found[player] for player in range(self.players)]
        answers = [answer for answer, _, _ in found]
        _, weights, age = found[0]
        joined = self.psro.oracle.join_outputs(self.psro.env, answers)  # pyright: ignore[reportAttributeAccessIssue]
        self.answered[self.filled] = weights, joined.metrics, int(age)
        self.found = {}
        self.state = self.psro.add_policies(self.state, joined)
        self.filled += 1
        self._publish_policies(workers)
        self._request_payoffs(workers)

    def _update_meta_strategy(self) -> Iterator[Iteration]:
        """Compute new mixtures from the payoff table of the next version, whose cells are all known.

        Yield the iteration; version 0, the initial policies, has none.
        """
        version, self.solved = self.solved, self.solved + 1
        payoffs = self._mask_payoffs(version)
        if not version:
            self.state = replace(self.state, payoffs=payoffs)
            self.psro.check_accepted(replace(self.state, num_policies=jnp.int32(1)))
            return
        weights, spent, age = self.answered.pop(version)
        new = replace(self.state, payoffs=payoffs, num_policies=jnp.int32(version + 1))
        spent = sum_counts([spent, self.played.pop(version)])
        after, metrics = self.programs.weighed(replace(self.state, weights=jnp.asarray(weights)), new, spent)
        self.psro.check_accepted(after)
        self.state = replace(after, num_policies=self.state.num_policies)
        kept = self.results.get(f"seconds-{version}")
        if kept is not None and is_compatible(SECONDS, kept):
            seconds = float(kept[0])
            self.began = time.perf_counter() - seconds
        else:
            seconds = time.perf_counter() - self.began
            self.results.put(f"seconds-{version}", [np.array(seconds)])
        yield Iteration(version, after, metrics | {"age": jnp.int32(age)}, seconds)

    def _mask_payoffs(self, version: int) -> Payoffs:
        """Return the payoffs of the policies up to a version, with 0 elsewhere."""
        inside = np.indices(self.table.mean.shape[1:]).max(0) <= version
        return jax.tree.map(lambda x: jnp.asarray(np.where(inside, x, 0).astype(np.float32)), self.table)
