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

from evorl import hyperparameters as numbers
from evorl.distributed import task as names
from evorl.distributed.executors import Executor, Serial, Workers
from evorl.distributed.programs import PSROPrograms, PSROSpec
from evorl.distributed.results import Results
from evorl.distributed.task import BEST_RESPONSE, PAYOFF, Task, Value
from evorl.distributed.values import fits, packed, unpacked
from evorl.errors import OptionError, require, require_whole
from evorl.hyperparameters import as_state
from evorl.keys import of_seed
from evorl.leagues.oracles import Divides, nothing_spent, spent_by
from evorl.leagues.payoffs import Payoffs
from evorl.types import Metrics
from evorl.workflows.psro import PSRO, PSROState

CELLS = 16  # profiles of one task
AGE, SECONDS = jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((), np.float64)


@dataclass(frozen=True)
class Iteration:
    """What one has come to."""

    number: int  # from 1
    state: PSROState
    metrics: Metrics  # those of PSRO.step, and the age of the table that was answered
    seconds: float  # since the first began, those of a training that was stopped included


def coordinate(
    psro: PSRO,
    executor: Executor = Serial(),  # noqa: B008  it is frozen
    iterations: int | None = None,
    seed: int = 0,
    hyperparams: Any = None,
    env_params: Any = None,
    staleness: int = 0,
    results: Results | None = None,
) -> Iterator[Iteration]:
    """Iterations of PSRO whose tasks an executor computes, by default until the pool is full.

    With staleness 0 what comes out depends neither on the order in which tasks end nor on who computes them, bit by bit
    where all have equal threads. Else best responses begin as soon as those before have ended, on a table in which so
    many policies of a player are missing at most: its age. What has come out is kept in results, from which the same
    call goes on. Raises OptionError, WorkerError.
    """
    most = psro.most_iterations
    iterations = most if iterations is None else iterations
    full = f"must be from 1 to {most}, with which the pool is full; a larger capacity has room for more"
    require(1 <= iterations <= most, "iterations", iterations, full)
    require_whole("staleness", staleness, 0)
    require(type(psro) is PSRO, "agent", type(psro).__name__, "must be PSRO, whose iterations are tasks")
    if not isinstance(psro.oracle, Divides):
        raise OptionError(f"oracle={type(psro.oracle).__name__}: answers for all players at once only, not one by one")
    params = psro.env.default_params if env_params is None else env_params
    spec = PSROSpec(psro, as_state(numbers.of(psro) if hyperparams is None else hyperparams), as_state(params))
    coordinator = Coordinator(spec.programs(), seed, staleness, results or Results())
    with executor.begun(coordinator.programs) as workers:
        yield from coordinator.run(workers, iterations)


class Coordinator:
    """One training: what has come out of its tasks so far, and what is to come."""

    def __init__(self, programs: PSROPrograms, seed: int, staleness: int, results: Results) -> None:
        self.programs, self.psro, self.staleness, self.results = programs, programs.psro, staleness, results
        self.players = self.psro.roles.num_players
        key_init, self.steps, _ = jax.random.split(of_seed(seed), 3)  # as those of a training by one program
        key_first, self.key_pay = jax.random.split(key_init)
        self.state = programs.begun(key_first)  # its pool and rest are the newest, weights and payoffs as weighed
        self.filled, self.solved = 1, 0  # versions in the pool, and in the table that is weighed
        self.table = jax.tree.map(np.array, self.state.payoffs)
        self.found: dict[int, Any] = {}  # by player, answers of the version that is to come
        self.answered: dict[int, tuple[Any, Metrics, int]] = {}  # by version, weights, what was spent, age
        self.missing: dict[int, int] = {}  # by version, tasks of payoffs
        self.played: dict[int, Metrics] = {}  # by version, what was played for its payoffs
        self.ready: deque[tuple[Task, Value]] = deque()  # what was kept
        self.asked = self.age = 0  # the version of which best responses are on their way, and how old their table is
        self.weights = np.asarray(self.state.weights)  # those of that table
        self.paid = programs.paid(CELLS)  # what comes out of a task of payoffs
        self.began = time.perf_counter()

    def run(self, workers: Workers, iterations: int) -> Iterator[Iteration]:
        """Iterations one after the other."""
        self._check()
        self._publish(workers)
        self._pay(workers)
        while self.solved <= iterations:
            if self.asked < self.filled <= min(iterations, self.solved + self.staleness):
                self._ask(workers)
            if self.ready:
                task, value = self.ready.popleft()
            else:
                task, value = workers.completed()
                value = self._kept(task, value)
            self._take(task, value, workers)
            while self.missing.get(self.solved) == 0:
                yield from self._weigh()

    def _check(self) -> None:
        """Raises OptionError where what is kept is of another training."""
        first, kept = packed(self.state.pool), self.results.get("first")
        if kept is None:
            self.results.put("first", first)
        elif len(first) != len(kept) or not all(map(np.array_equal, first, kept)):
            raise OptionError("resume: what is kept is of another training, whose first policies are others")

    def _submit(self, task: Task, workers: Workers) -> None:
        kept = self.results.get(task.name)
        if kept is not None and fits(self._shapes(task), kept):
            self.ready.append((task, kept))
        else:
            workers.submit(task)

    def _shapes(self, task: Task) -> Any:
        """Of what is kept of a task: of a best response with the weights that it answers, and their table's age."""
        if task.kind == PAYOFF:
            return self.paid
        weights = jax.ShapeDtypeStruct(self.weights.shape, self.weights.dtype)
        return self.programs.answer(task.part), weights, AGE

    def _publish(self, workers: Workers) -> None:
        """Makes the newest policies known."""
        version = self.filled - 1
        workers.publish(names.policies(version), packed(jax.tree.map(lambda x: x[version], self.state.pool)))
        if jax.tree.leaves(self.state.rest):
            workers.publish(names.rest(version), packed(self.state.rest))
            workers.forget(names.rest(version - 1))

    def _reads(self, versions: int) -> tuple[str, ...]:
        return tuple(map(names.policies, range(versions)))

    def _ask(self, workers: Workers) -> None:
        """For best responses against the newest mixtures."""
        version = self.asked = self.filled
        self.age, self.weights = version - self.solved, np.asarray(self.state.weights)
        given = np.asarray(self.programs.answered(self.state))
        key = np.asarray(jax.random.key_data(self._keys(version)[0]))
        reads = self._reads(version) + (names.rest(version - 1),) * bool(jax.tree.leaves(self.state.rest))
        for player in range(self.players):
            self._submit(Task(BEST_RESPONSE, version, player, key, given, reads), workers)

    def _pay(self, workers: Workers) -> None:
        """For payoffs of the profiles that are new with the newest policies."""
        version = self.filled - 1
        every = itertools.product(range(version + 1), repeat=self.players)
        new = np.array([one for one in every if max(one) == version], np.int32)
        key = self._keys(version)[1]
        batches = range(0, len(new), CELLS)
        self.missing[version] = len(batches)
        for part, start in enumerate(batches):
            profiles = new[np.minimum(np.arange(start, start + CELLS), len(new) - 1)]
            one = np.asarray(jax.random.key_data(jax.random.fold_in(key, part)))
            self._submit(Task(PAYOFF, version, part, one, profiles, self._reads(version + 1)), workers)

    def _keys(self, version: int) -> jax.Array:
        """Those of the best responses and of the payoffs of a version."""
        if not version:
            return jnp.stack([self.key_pay, self.key_pay])  # the first policies answer nothing
        return jax.random.split(jax.random.fold_in(self.steps, version - 1))

    def _kept(self, task: Task, value: Value) -> Value:
        """What has come out of a task, kept."""
        if task.kind == BEST_RESPONSE:
            value = [*value, self.weights, np.array(self.age, np.int32)]
        self.results.put(task.name, value)
        return value

    def _take(self, task: Task, value: Value, workers: Workers) -> None:
        """Does what a result lets come next."""
        if task.kind == PAYOFF:
            cells, spent = unpacked(self.paid, value)
            for table, of_cells in zip(jax.tree.leaves(self.table), jax.tree.leaves(cells), strict=True):
                table[(slice(None), *task.given.T)] = np.asarray(of_cells).T
            self.played[task.version] = spent_by([self.played.get(task.version, nothing_spent()), spent])
            self.missing[task.version] -= 1
            return
        self.found[task.part] = unpacked(self._shapes(task), value)
        if len(self.found) == self.players:
            self._grow(workers)

    def _grow(self, workers: Workers) -> None:
        """Puts a version into the pool."""
        found = [self.found[player] for player in range(self.players)]
        answers = [answer for answer, _, _ in found]
        _, weights, age = found[0]
        joined = self.psro.oracle.joined(self.psro.env, answers)  # pyright: ignore[reportAttributeAccessIssue]
        self.answered[self.filled] = weights, joined.metrics, int(age)
        self.found = {}
        self.state = self.psro.grown(self.state, joined)
        self.filled += 1
        self._publish(workers)
        self._pay(workers)

    def _weigh(self) -> Iterator[Iteration]:
        """New mixtures of a table that is whole up to a version."""
        version, self.solved = self.solved, self.solved + 1
        payoffs = self._up_to(version)
        if not version:
            self.state = replace(self.state, payoffs=payoffs)
            self.psro.accepted(replace(self.state, filled=jnp.int32(1)))
            return
        weights, spent, age = self.answered.pop(version)
        new = replace(self.state, payoffs=payoffs, filled=jnp.int32(version + 1))
        spent = spent_by([spent, self.played.pop(version)])
        after, metrics = self.programs.weighed(replace(self.state, weights=jnp.asarray(weights)), new, spent)
        self.psro.accepted(after)
        self.state = replace(after, filled=self.state.filled)
        kept = self.results.get(f"seconds-{version}")
        if kept is not None and fits(SECONDS, kept):
            seconds = float(kept[0])
            self.began = time.perf_counter() - seconds
        else:
            seconds = time.perf_counter() - self.began
            self.results.put(f"seconds-{version}", [np.array(seconds)])
        yield Iteration(version, after, metrics | {"age": jnp.int32(age)}, seconds)

    def _up_to(self, version: int) -> Payoffs:
        """The payoffs of policies up to a version."""
        inside = np.indices(self.table.mean.shape[1:]).max(0) <= version
        return jax.tree.map(lambda x: jnp.asarray(np.where(inside, x, 0).astype(np.float32)), self.table)
