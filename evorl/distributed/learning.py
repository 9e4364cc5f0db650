"""Says what is next where others play and this process learns: a rollout of each part, then an iteration."""

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import hyperparameters as numbers
from evorl.distributed import task as names
from evorl.distributed.executors import Executor, Serial, Workers
from evorl.distributed.rollouts import Learner, RolloutPrograms, RolloutSpec
from evorl.distributed.task import ROLLOUT, Task, Value
from evorl.distributed.values import packed, unpacked
from evorl.errors import OptionError, require, require_whole
from evorl.hyperparameters import as_state
from evorl.keys import of_seed
from evorl.types import Metrics
from evorl.vector_env import hosts
from evorl.workflows.on_policy import OnPolicy, OnPolicyState


@dataclass(frozen=True)
class Learned:
    """What an iteration has come to."""

    number: int  # from 1
    learner: Learner  # from which a training goes on
    metrics: Metrics  # those of OnPolicy.step, and how many iterations older the policy was that acted
    seconds: float  # since the call

    @property
    def state(self) -> OnPolicyState:
        """That of the workflow."""
        return self.learner.state


def coordinate_rollouts(
    workflow: OnPolicy,
    executor: Executor = Serial(),  # noqa: B008  it is frozen
    iterations: int = 100,
    seed: int = 0,
    hyperparams: Any = None,
    env_params: Any = None,
    parts: int = 1,
    begin: Learner | None = None,
) -> Generator[Learned, None, None]:
    """Iterations of an on-policy workflow whose rollouts an executor computes, each part of the environments apart.

    Parts, seed and workflow decide what comes out, bit by bit where all have equal threads; who computes, and in which
    order, does not. The policy that acts is that of `workflow.staleness` iterations ago, with the statistics of
    observations that it had then: so many iterations ahead of the learner rollouts are on their way. It learns with its
    own statistics. A training goes on from the learner of an iteration. Raises OptionError, WorkerError.
    """
    if not isinstance(workflow, OnPolicy):
        raise OptionError(f"agent={type(workflow).__name__}: must be OnPolicy, which learns from rollouts of others")
    require_whole("iterations", iterations)
    envs = workflow.num_envs
    require(parts >= 1 and envs % parts == 0, "parts", parts, f"must divide num_envs, {envs}")
    params = as_state(workflow.env.default_params if env_params is None else env_params)
    where = "lives in a process on the host, from where no other one can take it over"
    require(hosts.params(params) is None, "env", type(workflow.env).__name__, where)
    given = as_state(numbers.of(workflow) if hyperparams is None else hyperparams)
    coordinator = RolloutCoordinator(RolloutSpec(workflow, parts, given, params).programs(), seed, begin)
    with executor.begun(coordinator.programs) as workers:
        yield from coordinator.run(workers, iterations)


class RolloutCoordinator:
    """One training: what has been learned so far, and the rollouts that wait to be learned from."""

    def __init__(self, programs: RolloutPrograms, seed: int, begin: Learner | None) -> None:
        self.programs, self.staleness, self.parts = programs, programs.workflow.staleness, programs.spec.parts
        key_init, self.steps, _ = jax.random.split(of_seed(seed), 3)  # as those of a training by one program
        self.learner = programs.begun(key_init) if begin is None else begin
        self.iteration = int(self.learner.state.iteration)
        self.played: dict[tuple[int, int], Value] = {}  # by iteration and part
        self.idle = dict.fromkeys(range(self.parts), self.iteration)  # by part without a rollout, that of its next one
        self.began = time.perf_counter()

    def run(self, workers: Workers, iterations: int) -> Iterator[Learned]:
        """Iterations one after the other."""
        for version in range(self._acting(self.iteration), self.iteration + 1):
            place = version - self.iteration + self.staleness
            workers.publish(names.policy(version), packed(self.programs.acting(self.learner, place)))
        for part, slots in enumerate(self.programs.parted(self.learner.state.slots)):
            workers.publish(names.slots(self.iteration, part), slots)
        while self.iteration < iterations:
            self._ask(workers, iterations)
            if all((self.iteration, part) in self.played for part in range(self.parts)):
                yield self._learn(workers)
            else:
                self._take(*workers.completed(), workers)

    def _acting(self, iteration: int) -> int:
        """The version of the policy that acts for an iteration."""
        return max(0, iteration - self.staleness)

    def _keys(self, iteration: int) -> jax.Array:
        """Those by which a workflow plans, plays and absorbs."""
        return jax.random.split(jax.random.fold_in(self.steps, iteration), 3)

    def _ask(self, workers: Workers, iterations: int) -> None:
        """For the rollouts of all parts that can begin."""
        for part, iteration in list(self.idle.items()):
            version = self._acting(iteration)
            if iteration < iterations and version <= self.iteration:
                key = self._keys(iteration)[1]
                key = np.asarray(jax.random.key_data(jax.random.fold_in(key, part) if self.parts > 1 else key))
                reads = names.policy(version), names.slots(iteration, part)
                workers.submit(Task(ROLLOUT, iteration, part, key, np.array(version), reads))
                del self.idle[part]

    def _take(self, task: Task, value: Value, workers: Workers) -> None:
        """Keeps a rollout, with whose slots the next one can begin."""
        self.played[task.version, task.part] = value
        self.idle[task.part] = task.version + 1
        slots = value[: len(jax.tree.leaves(self.programs.slots))]
        workers.publish(names.slots(task.version + 1, task.part), slots)
        workers.forget(names.slots(task.version, task.part))

    def _learn(self, workers: Workers) -> Learned:
        """Learns from a rollout, and makes the policy known that has."""
        iteration, shapes = self.iteration, self.programs.rollout
        rollouts = [unpacked(shapes, self.played.pop((iteration, part))) for part in range(self.parts)]
        self.learner, metrics = self.programs.learned(self.learner, rollouts, self._keys(iteration)[2])
        self.iteration += 1
        newest = self.programs.acting(self.learner, self.staleness)
        workers.publish(names.policy(self.iteration), packed(newest))
        workers.forget(names.policy(iteration - self.staleness))  # whose last rollout this was
        age = jnp.int32(iteration - self._acting(iteration))
        return Learned(self.iteration, self.learner, metrics | {"age": age}, time.perf_counter() - self.began)
