"""Coordinator of distributed rollouts: workers run them, and this process learns from them."""

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
from evorl.tree import resolve_env_params
from evorl.types import Metrics
from evorl.vector_env import hosts
from evorl.workflows.on_policy import OnPolicy, OnPolicyState


@dataclass(frozen=True)
class RolloutIteration:
    """Result of one iteration."""

    number: int  # from 1
    learner: LearnerState  # from which a training can continue
    metrics: Metrics  # those of OnPolicy.step, and by how many iterations the acting policy was older
    seconds: float  # since the call of coordinate_rollouts

    @property
    def state(self) -> OnPolicyState:
        """Return the state of the workflow."""
        return self.learner.state


def coordinate_rollouts(
    workflow: OnPolicy,
    executor: Executor = SerialExecutor(),  # noqa: B008  immutable
    iterations: int = 100,
    seed: int = 0,
    env_params: Any = None,
    parts: int = 1,
    begin: LearnerState | None = None,
) -> Generator[RolloutIteration, None, None]:
    """Run an on-policy workflow whose rollouts an executor computes, in separate parts of the environments.

    The results depend on the workflow, the seed and the number of parts, but neither on who computes a
    rollout nor on the order. They are bitwise identical if all workers have the same number of threads.

    The policy that acts is the one from `workflow.staleness` iterations ago, with its observation statistics
    of that time. Rollouts can therefore be that many iterations ahead of the learner. The learner normalizes
    with its own statistics.

    Args:
        workflow: On-policy workflow.
        executor: Executor, which computes the rollouts.
        iterations: Number of iterations, including those before `begin`.
        seed: Random seed.
        env_params: Environment parameters; None for the default parameters of the environment.
        parts: Number of parts of the environments, which must divide num_envs.
        begin: Learner of an iteration from which to continue; None to start a new training.

    Yields:
        The iterations in their order.

    Raises:
        OptionError: If an option is not allowed, or the environment runs on the host.
        WorkerError: If a task fails in a worker, or workers die too often.
    """
    if not isinstance(workflow, OnPolicy):
        raise OptionError(
            f"agent={type(workflow).__name__}: must be OnPolicy, which can learn from rollouts of workers"
        )
    require_int("iterations", iterations)
    envs = workflow.num_envs
    require(parts >= 1 and envs % parts == 0, "parts", parts, f"must divide num_envs, {envs}")
    params = resolve_env_params(workflow.env, env_params)
    where = "must not run on the host, because workers cannot share its processes"
    require(hosts.find_host_params(params) is None, "env", type(workflow.env).__name__, where)
    given = resolve_numbers(workflow)
    coordinator = RolloutCoordinator(RolloutSpec(workflow, parts, given, params).build_programs(), seed, begin)
    with executor.start_workers(coordinator.programs) as workers:
        yield from coordinator.run(workers, iterations)


class RolloutCoordinator:
    """State of a training: the learner, and the rollouts from which it has not learned yet."""

    def __init__(self, programs: RolloutPrograms, seed: int, begin: LearnerState | None) -> None:
        self.programs, self.staleness, self.parts = programs, programs.workflow.staleness, programs.spec.parts
        key_init, self.steps, _ = jax.random.split(key_from_seed(seed), 3)  # same keys as in a training in one program
        self.learner = programs.init_learner(key_init) if begin is None else begin
        self.iteration = int(self.learner.state.iteration)
        self.played: dict[tuple[int, int], Value] = {}  # rollouts by iteration and part
        # iteration of the next rollout, by part without a pending one
        self.idle = dict.fromkeys(range(self.parts), self.iteration)
        self.began = time.perf_counter()

    def run(self, workers: TaskWorkers, iterations: int) -> Iterator[RolloutIteration]:
        """Yield the iterations in their order."""
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
        """Return the version of the policy that acts in an iteration."""
        return max(0, iteration - self.staleness)

    def _make_keys(self, iteration: int) -> jax.Array:
        """Return the keys with which a workflow plans, runs the rollout, and learns."""
        return jax.random.split(jax.random.fold_in(self.steps, iteration), 3)

    def _request_rollouts(self, workers: TaskWorkers, iterations: int) -> None:
        """Request the rollouts of all parts whose environments and policy are available."""
        for part, iteration in list(self.idle.items()):
            version = self._get_acting_version(iteration)
            if iteration < iterations and version <= self.iteration:
                key = self._make_keys(iteration)[1]
                key = np.asarray(jax.random.key_data(jax.random.fold_in(key, part) if self.parts > 1 else key))
                reads = names.format_policy_name(version), names.format_envs_name(iteration, part)
                workers.submit(Task(ROLLOUT, iteration, part, key, np.array(version), reads))
                del self.idle[part]

    def _store_rollout(self, task: Task, value: Value, workers: TaskWorkers) -> None:
        """Store a rollout, and publish its final environments, in which the next one starts."""
        self.played[task.version, task.part] = value
        self.idle[task.part] = task.version + 1
        envs = value[: len(jax.tree.leaves(self.programs.env_shapes))]
        workers.publish(names.format_envs_name(task.version + 1, task.part), envs)
        workers.forget(names.format_envs_name(task.version, task.part))

    def _learn_from_rollouts(self, workers: TaskWorkers) -> RolloutIteration:
        """Learn from the rollouts of all parts, and publish the new policy."""
        iteration, shapes = self.iteration, self.programs.rollout_shapes
        rollouts = [unpack_value(shapes, self.played.pop((iteration, part))) for part in range(self.parts)]
        self.learner, metrics = self.programs.learned(self.learner, rollouts, self._make_keys(iteration)[2])
        self.iteration += 1
        newest = self.programs.get_acting_policy(self.learner, self.staleness)
        workers.publish(names.format_policy_name(self.iteration), pack_value(newest))
        workers.forget(names.format_policy_name(iteration - self.staleness))  # no further rollout uses it
        age = jnp.int32(iteration - self._get_acting_version(iteration))
        return RolloutIteration(self.iteration, self.learner, metrics | {"age": age}, time.perf_counter() - self.began)
