"""Says what is next where others play and this process learns: a rollout of each part, then an iteration."""

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.distributed import task as names
from evorl.distributed.executors import Executor, SerialExecutor, TaskWorkers
from evorl.distributed.rollout_programs import LearnerState, RolloutPrograms, RolloutSpec
from evorl.distributed.task import ROLLOUT, Task, Value
from evorl.distributed.values import pack_value, unpack_value
from evorl.errors import OptionError, require, require_int
from evorl.keys import key_from_seed
from evorl.parts import resolve_numbers
from evorl.tree import as_arrays
from evorl.types import Metrics
from evorl.vector_env import hosts
from evorl.workflows.on_policy import OnPolicy, OnPolicyState


@dataclass(frozen=True)
class RolloutIteration:
    """What an iteration has come to."""

    number: int  # from 1
    learner: LearnerState  # from which a training goes on
    metrics: Metrics  # those of OnPolicy.step, and how many iterations older the policy was that acted
    seconds: float  # since the call

    @property
    def state(self) -> OnPolicyState:
        """That of the workflow."""
        return self.learner.state


def coordinate_rollouts(
    workflow: OnPolicy,
    executor: Executor = SerialExecutor(),  # noqa: B008  it is frozen
    iterations: int = 100,
    seed: int = 0,
    env_params: Any = None,
    parts: int = 1,
    begin: LearnerState | None = None,
) -> Generator[RolloutIteration, None, None]:
    """Iterations of an on-policy workflow whose rollouts an executor computes, each part of the environments apart.

    Parts, seed and workflow decide what comes out, bit by bit where all have equal threads; who computes, and in which
    order, does not. The policy that acts is that of `workflow.staleness` iterations ago, with the statistics of
    observations that it had then: so many iterations ahead of the learner rollouts are on their way. It learns with its
    own statistics. A training goes on from the learner of an iteration. Raises OptionError, WorkerError.
    """
    if not isinstance(workflow, OnPolicy):
        raise OptionError(f"agent={type(workflow).__name__}: must be OnPolicy, which learns from rollouts of others")
    require_int("iterations", iterations)
    envs = workflow.num_envs
    require(parts >= 1 and envs % parts == 0, "parts", parts, f"must divide num_envs, {envs}")
    params = as_arrays(workflow.env.default_params if env_params is None else env_params)
    where = "lives in a process on the host, from where no other one can take it over"
    require(hosts.find_host_params(params) is None, "env", type(workflow.env).__name__, where)
    given = resolve_numbers(workflow)
    coordinator = RolloutCoordinator(RolloutSpec(workflow, parts, given, params).build_programs(), seed, begin)
    with executor.start_workers(coordinator.programs) as workers:
        yield from coordinator.run(workers, iterations)


class RolloutCoordinator:
    """One training: what has been learned so far, and the rollouts that wait to be learned from."""

    def __init__(self, programs: RolloutPrograms, seed: int, begin: LearnerState | None) -> None:
        self.programs, self.staleness, self.parts = programs, programs.workflow.staleness, programs.spec.parts
        key_init, self.steps, _ = jax.random.split(key_from_seed(seed), 3)  # as those of a training by one program
        self.learner = programs.init_learner(key_init) if begin is None else begin
        self.iteration = int(self.learner.state.iteration)
        self.played: dict[tuple[int, int], Value] = {}  # by iteration and part
        self.idle = dict.fromkeys(range(self.parts), self.iteration)  # by part without a rollout, that of its next one
        self.began = time.perf_counter()

    def run(self, workers: TaskWorkers, iterations: int) -> Iterator[RolloutIteration]:
        """Iterations one after the other."""
        for version in range(self._get_acting_version(self.iteration), self.iteration + 1):
            place = version - self.iteration + self.staleness
            workers.publish(
                names.format_policy_name(version), pack_value(self.programs.get_acting_policy(self.learner, place))
            )
        for part, envs in enumerate(self.programs.split_envs(self.learner.state.envs)):
            workers.publish(names.format_envs_name(self.iteration, part), envs)
        while self.iteration < iterations:
            self._request_rollouts(workers, iterations)
            if all((self.iteration, part) in self.played for part in range(self.parts)):
                yield self._learn_from_rollouts(workers)
            else:
                self._store_rollout(*workers.wait_for_result(), workers)

    def _get_acting_version(self, iteration: int) -> int:
        """The version of the policy that acts for an iteration."""
        return max(0, iteration - self.staleness)

    def _make_keys(self, iteration: int) -> jax.Array:
        """Those by which a workflow plans, plays and absorbs."""
        return jax.random.split(jax.random.fold_in(self.steps, iteration), 3)

    def _request_rollouts(self, workers: TaskWorkers, iterations: int) -> None:
        """For the rollouts of all parts that can begin."""
        for part, iteration in list(self.idle.items()):
            version = self._get_acting_version(iteration)
            if iteration < iterations and version <= self.iteration:
                key = self._make_keys(iteration)[1]
                key = np.asarray(jax.random.key_data(jax.random.fold_in(key, part) if self.parts > 1 else key))
                reads = names.format_policy_name(version), names.format_envs_name(iteration, part)
                workers.submit(Task(ROLLOUT, iteration, part, key, np.array(version), reads))
                del self.idle[part]

    def _store_rollout(self, task: Task, value: Value, workers: TaskWorkers) -> None:
        """Keeps a rollout, with whose environments the next one can begin."""
        self.played[task.version, task.part] = value
        self.idle[task.part] = task.version + 1
        envs = value[: len(jax.tree.leaves(self.programs.env_shapes))]
        workers.publish(names.format_envs_name(task.version + 1, task.part), envs)
        workers.forget(names.format_envs_name(task.version, task.part))

    def _learn_from_rollouts(self, workers: TaskWorkers) -> RolloutIteration:
        """Learns from a rollout, and makes the policy known that has."""
        iteration, shapes = self.iteration, self.programs.rollout_shapes
        rollouts = [unpack_value(shapes, self.played.pop((iteration, part))) for part in range(self.parts)]
        self.learner, metrics = self.programs.learned(self.learner, rollouts, self._make_keys(iteration)[2])
        self.iteration += 1
        newest = self.programs.get_acting_policy(self.learner, self.staleness)
        workers.publish(names.format_policy_name(self.iteration), pack_value(newest))
        workers.forget(names.format_policy_name(iteration - self.staleness))  # whose last rollout this was
        age = jnp.int32(iteration - self._get_acting_version(iteration))
        return RolloutIteration(self.iteration, self.learner, metrics | {"age": age}, time.perf_counter() - self.began)
