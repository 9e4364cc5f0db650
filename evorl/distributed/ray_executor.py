"""Executor of tasks in Ray actors, on this machine or on those of a cluster."""

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import jax

from evorl.distributed.cluster import connect_to_ray, summarize_ray_error
from evorl.distributed.executors import TaskWorkers
from evorl.distributed.task import Task, TaskPrograms, Value
from evorl.distributed.worker import RayWorker
from evorl.errors import OptionError, WorkerError, require, require_int
from evorl.machine import THREADS_VARIABLE, count_cores, limit_gpu_memory

START_TIMEOUT_SECONDS = 300  # time for all actors to start
CHECK_INTERVAL_SECONDS = 30  # time between two tests whether the cluster has become too small
MAX_DEATHS = 4  # maximum number per worker without any result in between
FORWARDED_VARIABLE_PREFIXES = "XLA_", "JAX_"  # environment variables that actors receive


@dataclass(frozen=True)
class RayExecutor:
    """Executor with several worker processes on this machine, or on those of the Ray cluster at an address.

    A process that dies is replaced, and its task starts again. Each worker has as many threads as whole CPUs,
    at least one.

    Args:
        workers: Number of worker processes.
        cpus_per_worker: Number of CPUs of each worker, which may be a fraction.
        address: Address of a Ray cluster; None to start one on this machine.
        gpus_per_worker: Number of GPUs of each worker, which may be a fraction; 0 to compute on CPUs. Workers
            that share a GPU get equal fractions of its memory.

    Raises:
        OptionError: If `workers` is below 1, `cpus_per_worker` is not above 0, or `gpus_per_worker` is below 0.
    """

    workers: int = 2
    cpus_per_worker: float = 1.0
    address: str | None = None
    gpus_per_worker: float = 0.0

    def __post_init__(self) -> None:
        require_int("workers", self.workers)
        require(self.cpus_per_worker > 0, "cpus_per_worker", self.cpus_per_worker, "must be above 0")
        gpus = self.gpus_per_worker
        whole = gpus >= 0 and (gpus <= 1 or gpus == int(gpus))
        require(whole, "gpus_per_worker", gpus, "must be a fraction of a GPU or a whole number, at least 0")

    @property
    def total_cpus(self) -> float:
        """Return the number of CPUs of all workers."""
        return self.workers * self.cpus_per_worker

    @property
    def worker_environment(self) -> dict[str, str]:
        """Return the environment variables of a worker: its threads, its device, and its share of a GPU's memory."""
        given = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED_VARIABLE_PREFIXES)}
        own = {THREADS_VARIABLE: str(max(1, int(self.cpus_per_worker)))}
        if not self.gpus_per_worker:
            return given | own | {"JAX_PLATFORMS": "cpu"}
        return given | own | limit_gpu_memory(self.gpus_per_worker)

    @contextmanager
    def connect_to_ray(self) -> Iterator[Any]:
        """Connect to a Ray cluster that has enough CPUs for all workers.

        Yields:
            The module ray.

        Raises:
            OptionError: If there are not enough CPUs, no cluster at the address, or if Ray is not installed.
        """
        if self.address is None:
            self._require_resources("CPU", count_cores())
        with connect_to_ray(self.address, use_gpus=self.gpus_per_worker > 0) as ray:
            for kind in ("CPU", "GPU"):
                self._require_resources(kind, ray.cluster_resources().get(kind, 0))
            yield ray

    @contextmanager
    def start_workers(self, programs: TaskPrograms) -> Iterator[TaskWorkers]:
        """Start the workers as Ray actors, which end with the block."""
        with self.connect_to_ray() as ray:
            actors = RayWorkers(ray, self, programs)
            try:
                actors.start()
                yield actors
            finally:
                actors.terminate()

    def _require_resources(self, kind: str, there: float) -> None:
        """Raise OptionError unless there are enough CPUs or GPUs."""
        needed = self.workers * (self.cpus_per_worker if kind == "CPU" else self.gpus_per_worker)
        less = f"use {kind.lower()}s_per_worker={math.floor(1000 * there / self.workers) / 1000:g}"
        taken = f"need {needed:g} {kind}s, and {there:g} are available; {less}"
        require(needed <= there * (1 + 1e-6), "workers", self.workers, taken)


class RayWorkers:
    """Running Ray actors, and the values that they read, which are in Ray's object store."""

    def __init__(self, ray: Any, executor: RayExecutor, programs: TaskPrograms) -> None:
        self._ray, self._executor = ray, executor
        caches = jax.config.values["jax_compilation_cache_dir"] is not None
        try:
            spec = ray.cloudpickle.dumps(programs.spec)
        except Exception as error:  # pickling may raise any type
            raise OptionError(f"executor=ray: the training cannot be pickled: {summarize_ray_error(error)}") from error
        resources = {"num_cpus": executor.cpus_per_worker, "num_gpus": executor.gpus_per_worker}
        self._actor = ray.remote(**resources, max_restarts=0)(RayWorker)
        self._given = executor.worker_environment, caches, spec
        self._values: dict[str, Any] = {}
        self._tasks: deque[Task] = deque()
        self._idle: list[Any] = []
        self._running: dict[Any, tuple[Task, Any]] = {}  # task and actor, by the reference to the result
        self._deaths = 0  # number since the last result

    def start(self) -> None:
        """Start all actors, and replace those that are killed.

        Raises:
            OptionError: They do not start in time.
            WorkerError: One raises an error, or they are killed too often.
        """
        deadline, self.processes, starting = time.monotonic() + START_TIMEOUT_SECONDS, list[int](), dict[Any, Any]()
        for _ in range(self._executor.workers):
            self._start_actor(starting)
        while starting:
            done, _ = self._ray.wait(list(starting), timeout=max(deadline - time.monotonic(), 0))
            if not done:
                busy = f"did not start within {START_TIMEOUT_SECONDS} s; other programs may use the CPUs"
                raise OptionError(f"workers={self._executor.workers}: {busy}")
            actor = starting.pop(done[0])
            try:
                self.processes.append(self._ray.get(done[0]))
                self._idle.append(actor)
            except self._ray.exceptions.RayError as error:
                self._deaths += 1
                if getattr(error, "actor_init_failed", True) or self._deaths > MAX_DEATHS * self._executor.workers:
                    raise WorkerError(f"a worker failed to start: {describe_cause(error)}") from error
                self._start_actor(starting)
        self._deaths = 0

    def _start_actor(self, starting: dict[Any, Any]) -> None:
        actor = self._actor.remote(*self._given)
        starting[actor.get_process_id.remote()] = actor

    def terminate(self) -> None:
        """Terminate all actors."""
        for actor in [*self._idle, *(actor for _, actor in self._running.values())]:
            with suppress(Exception):  # the cluster may have ended
                self._ray.kill(actor)

    def publish(self, name: str, value: Value) -> None:
        self._values[name] = self._ray.put(value)

    def forget(self, name: str) -> None:
        self._values.pop(name, None)

    def submit(self, task: Task) -> None:
        self._tasks.append(task)
        self._assign_tasks()

    def wait_for_result(self) -> tuple[Task, Value]:
        errors = self._ray.exceptions
        while True:
            done, _ = self._ray.wait(list(self._running), timeout=CHECK_INTERVAL_SECONDS)
            if not done:
                self._check_cluster_size()
                continue
            task, actor = self._running.pop(done[0])
            try:
                value = self._ray.get(done[0])
            except errors.RayTaskError as error:
                self._idle.append(actor)
                raise WorkerError(f"{task.name} has failed: {describe_cause(error)}") from error
            except errors.RayError:  # such as RayActorError, or OutOfMemoryError, which is not one
                self._ray.kill(actor)
                self._replace_worker(task)
                continue
            self._deaths = 0
            self._idle.append(actor)
            self._assign_tasks()
            return task, list(value)

    def _assign_tasks(self) -> None:
        while self._idle and self._tasks:
            actor, task = self._idle.pop(0), self._tasks.popleft()
            values = {name: self._values[name] for name in task.value_names}
            self._running[actor.compute.remote(task, values)] = task, actor

    def _replace_worker(self, task: Task) -> None:
        """Start another actor for one that has died, and submit its task again before all others."""
        self._deaths += 1
        if self._deaths > MAX_DEATHS * self._executor.workers:
            raise WorkerError(f"workers have died {self._deaths} times without a result, the last one at {task.name}")
        self._tasks.appendleft(task)
        self._idle.append(self._actor.remote(*self._given))
        self._assign_tasks()

    def _check_cluster_size(self) -> None:
        """Raise WorkerError if the cluster has too few CPUs left."""
        there = self._ray.cluster_resources().get("CPU", 0)
        if there * (1 + 1e-6) < self._executor.total_cpus:
            raise WorkerError(
                f"the cluster has {there:g} CPUs left, and the workers need {self._executor.total_cpus:g}"
            )


def describe_cause(error: Exception) -> str:
    """Return the error that was raised in an actor, as text."""
    cause = getattr(error, "cause", None) or error
    said = f"{type(cause).__name__}: {summarize_ray_error(cause)}"
    own = "; workers cannot import definitions of the main script; move them to a module"
    return said + own * ("__main__." in said)
