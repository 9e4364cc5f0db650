"""Says what is next: best responses of all players, payoffs of new profiles, mixtures; and keeps what has come out."""

import itertools
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.distributed import task as names
from evorl.distributed.executors import Executor, SerialExecutor, TaskWorkers
from evorl.distributed.programs import PSROPrograms, PSROSpec
from evorl.distributed.results import ResultStore
from evorl.distributed.task import BEST_RESPONSE, PAYOFF, Task, Value
from evorl.distributed.values import is_compatible, pack_value, unpack_value
from evorl.errors import OptionError, require, require_int
from evorl.keys import key_from_seed
from evorl.leagues.oracles import DivisibleOracle, sum_counts, zero_counts
from evorl.leagues.payoffs import Payoffs
from evorl.leagues.psro import PSRO, PSROState
from evorl.parts import resolve_numbers
from evorl.tree import as_arrays
from evorl.types import Metrics

PROFILES_PER_TASK = 16  # profiles of one task
AGE, SECONDS = jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((), np.float64)


@dataclass(frozen=True)
class PSROIteration:
    """What one has come to."""

    number: int  # from 1
    state: PSROState
    metrics: Metrics  # those of PSRO.step, and the age of the table that was answered
    seconds: float  # since the first began, those of a training that was stopped included


def coordinate_psro(
    psro: PSRO,
    executor: Executor = SerialExecutor(),  # noqa: B008  it is frozen
    iterations: int | None = None,
    seed: int = 0,
    env_params: Any = None,
    staleness: int = 0,
    results: ResultStore | None = None,
) -> Iterator[PSROIteration]:
    """Iterations of PSRO whose tasks an executor computes, by default until the pool is full.

    With staleness 0 what comes out depends neither on the order in which tasks end nor on who computes them, bit by bit
    where all have equal threads. Else best responses begin as soon as those before have ended, on a table in which so
    many policies of a player are missing at most: its age. What has come out is kept in results, from which the same
    call goes on. Raises OptionError, WorkerError.
    """
    most = psro.max_iterations
    iterations = most if iterations is None else iterations
    full = f"must be from 1 to {most}, with which the pool is full; a larger capacity has room for more"
    require(1 <= iterations <= most, "iterations", iterations, full)
    require_int("staleness", staleness, 0)
    require(type(psro) is PSRO, "agent", type(psro).__name__, "must be PSRO, whose iterations are tasks")
    if not isinstance(psro.oracle, DivisibleOracle):
        raise OptionError(f"oracle={type(psro.oracle).__name__}: answers for all players at once only, not one by one")
    params = psro.env.default_params if env_params is None else env_params
    spec = PSROSpec(psro, resolve_numbers(psro), as_arrays(params))
    coordinator = PSROCoordinator(spec.build_programs(), seed, staleness, results or ResultStore())
    with executor.start_workers(coordinator.programs) as workers:
        yield from coordinator.run(workers, iterations)


class PSROCoordinator:
    """One training: what has come out of its tasks so far, and what is to come."""

    def __init__(self, programs: PSROPrograms, seed: int, staleness: int, results: ResultStore) -> None:
        self.programs, self.psro, self.staleness, self.results = programs, programs.psro, staleness, results
        self.players = self.psro.roles.num_players
        key_init, self.steps, _ = jax.random.split(key_from_seed(seed), 3)  # as those of a training by one program
        key_first, self.key_pay = jax.random.split(key_init)
        # its pool and oracle_state are the newest, weights and payoffs as weighed
        self.state = programs.init_state(key_first)
        self.filled, self.solved = 1, 0  # versions in the pool, and in the table that is weighed
        self.table = jax.tree.map(np.array, self.state.payoffs)
        self.found: dict[int, Any] = {}  # by player, answers of the version that is to come
        self.answered: dict[int, tuple[Any, Metrics, int]] = {}  # by version, weights, what was spent, age
        self.missing: dict[int, int] = {}  # by version, tasks of payoffs
        self.played: dict[int, Metrics] = {}  # by version, what was played for its payoffs
        self.ready: deque[tuple[Task, Value]] = deque()  # what was kept
        self.asked = self.age = 0  # the version of which best responses are on their way, and how old their table is
        self.weights = np.asarray(self.state.weights)  # those of that table
        self.paid = programs.get_payoff_shapes(PROFILES_PER_TASK)  # what comes out of a task of payoffs
        self.began = time.perf_counter()

    def run(self, workers: TaskWorkers, iterations: int) -> Iterator[PSROIteration]:
        """Iterations one after the other."""
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
        """Raises OptionError where what is kept is of another training."""
        first, kept = pack_value(self.state.pool), self.results.get("first")
        if kept is None:
            self.results.put("first", first)
        elif len(first) != len(kept) or not all(map(np.array_equal, first, kept)):
            raise OptionError("resume: what is kept is of another training, whose first policies are others")

    def _submit_or_reuse(self, task: Task, workers: TaskWorkers) -> None:
        kept = self.results.get(task.name)
        if kept is not None and is_compatible(self._get_value_shapes(task), kept):
            self.ready.append((task, kept))
        else:
            workers.submit(task)

    def _get_value_shapes(self, task: Task) -> Any:
        """Of what is kept of a task: of a best response with the weights that it answers, and their table's age."""
        if task.kind == PAYOFF:
            return self.paid
        weights = jax.ShapeDtypeStruct(self.weights.shape, self.weights.dtype)
        return self.programs.get_response_shapes(task.part), weights, AGE

    def _publish_policies(self, workers: TaskWorkers) -> None:
        """Makes the newest policies known."""
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
        """For best responses against the newest mixtures."""
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
        """For payoffs of the profiles that are new with the newest policies."""
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
        """Those of the best responses and of the payoffs of a version."""
        if not version:
            return jnp.stack([self.key_pay, self.key_pay])  # the first policies answer nothing
        return jax.random.split(jax.random.fold_in(self.steps, version - 1))

    def _store_result(self, task: Task, value: Value) -> Value:
        """What has come out of a task, kept."""
        if task.kind == BEST_RESPONSE:
            value = [*value, self.weights, np.array(self.age, np.int32)]
        self.results.put(task.name, value)
        return value

    def _process_result(self, task: Task, value: Value, workers: TaskWorkers) -> None:
        """Does what a result lets come next."""
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
        """Puts a version into the pool."""
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

    def _update_meta_strategy(self) -> Iterator[PSROIteration]:
        """New mixtures of a table that is whole up to a version."""
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
        yield PSROIteration(version, after, metrics | {"age": jnp.int32(age)}, seconds)

    def _mask_payoffs(self, version: int) -> Payoffs:
        """The payoffs of policies up to a version."""
        inside = np.indices(self.table.mean.shape[1:]).max(0) <= version
        return jax.tree.map(lambda x: jnp.asarray(np.where(inside, x, 0).astype(np.float32)), self.table)
