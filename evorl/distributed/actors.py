"""Tasks in actors of Ray, on this machine or on those of a cluster."""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import jax

from evorl.distributed.cluster import connected, first_line
from evorl.distributed.executors import Workers
from evorl.distributed.task import Programs, Task, Value
from evorl.distributed.worker import Worker
from evorl.errors import OptionError, WorkerError, require, require_whole
from evorl.training.devices import cores

READY = 300  # seconds in which actors must have started
LOOK = 30  # seconds after which to look whether the cluster has become too small
DEATHS = 4  # of each worker, without a result of any
SHARED = "XLA_", "JAX_"  # variables of the environment that actors take over


@dataclass(frozen=True)
class Ray:
    """So many processes, each with a share of the CPUs of this machine, or of the cluster at an address.

    A process that dies is replaced, and its task begins again. All compute with as many threads as they have whole
    CPUs, at least one.
    """

    workers: int = 2
    cpus_per_worker: float = 1.0
    address: str | None = None

    def __post_init__(self) -> None:
        require_whole("workers", self.workers)
        require(self.cpus_per_worker > 0, "cpus_per_worker", self.cpus_per_worker, "must be above 0")

    @property
    def cpus(self) -> float:
        """How many all take."""
        return self.workers * self.cpus_per_worker

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Ray, with a cluster that has as many CPUs; raises OptionError where there are fewer."""
        if self.address is None:
            self._require(cores())
        with connected(self.address) as ray:
            self._require(ray.cluster_resources().get("CPU", 0))
            yield ray

    @contextmanager
    def begun(self, programs: Programs) -> Iterator[Workers]:
        with self.connected() as ray:
            actors = Actors(ray, self, programs)
            try:
                actors.start()
                yield actors
            finally:
                actors.end()

    def _require(self, there: float) -> None:
        less = f"cpus_per_worker={there / self.workers:.3g} shares them"
        taken = f"take {self.cpus:g} CPUs, and there are {there:g}; {less}"
        require(self.cpus <= there * (1 + 1e-6), "workers", self.workers, taken)


class Actors:
    """Actors at work, and the values that they read in Ray's store."""

    def __init__(self, ray: Any, executor: Ray, programs: Programs) -> None:
        self._ray, self._executor = ray, executor
        threads = max(1, int(executor.cpus_per_worker))
        environment = {name: value for name, value in os.environ.items() if name.startswith(SHARED)}
        environment |= {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": str(threads)}
        caches = jax.config.values["jax_compilation_cache_dir"] is not None
        try:
            spec = ray.cloudpickle.dumps(programs.spec)
        except Exception as error:  # what cannot be pickled raises anything
            raise OptionError(f"executor=ray: the training cannot be sent: {first_line(error)}") from error
        self._actor = ray.remote(num_cpus=executor.cpus_per_worker, max_restarts=0)(Worker)
        self._given = environment, caches, spec
        self._values: dict[str, Any] = {}
        self._tasks: deque[Task] = deque()
        self._idle: list[Any] = []
        self._running: dict[Any, tuple[Task, Any]] = {}  # by what will be its result, a task and its actor
        self._deaths = 0  # since the last result

    def start(self) -> None:
        """Starts all; raises OptionError where they find no place, WorkerError where they die."""
        self._idle = [self._actor.remote(*self._given) for _ in range(self._executor.workers)]
        try:
            self.processes = self._ray.get([one.process.remote() for one in self._idle], timeout=READY)
        except self._ray.exceptions.GetTimeoutError as error:
            busy = f"have not started in {READY} s: others may have the CPUs"
            raise OptionError(f"workers={self._executor.workers}: {busy}") from error
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"a worker has not started: {cause_of(error)}") from error

    def end(self) -> None:
        """Ends all."""
        for actor in [*self._idle, *(actor for _, actor in self._running.values())]:
            with suppress(Exception):  # of a cluster that is gone
                self._ray.kill(actor)

    def publish(self, name: str, value: Value) -> None:
        self._values[name] = self._ray.put(value)

    def forget(self, name: str) -> None:
        self._values.pop(name, None)

    def submit(self, task: Task) -> None:
        self._tasks.append(task)
        self._hand_out()

    def completed(self) -> tuple[Task, Value]:
        errors = self._ray.exceptions
        while True:
            done, _ = self._ray.wait(list(self._running), timeout=LOOK)
            if not done:
                self._look()
                continue
            task, actor = self._running.pop(done[0])
            try:
                value = self._ray.get(done[0])
            except errors.RayActorError:
                self._replace(task)
                continue
            except errors.RayTaskError as error:
                self._idle.append(actor)
                raise WorkerError(f"{task.name} has failed: {cause_of(error)}") from error
            self._deaths = 0
            self._idle.append(actor)
            self._hand_out()
            return task, list(value)

    def _hand_out(self) -> None:
        while self._idle and self._tasks:
            actor, task = self._idle.pop(0), self._tasks.popleft()
            values = {name: self._values[name] for name in task.reads}
            self._running[actor.compute.remote(task, values)] = task, actor

    def _replace(self, task: Task) -> None:
        """Another actor for one that has died, and its task first of all."""
        self._deaths += 1
        if self._deaths > DEATHS * self._executor.workers:
            raise WorkerError(f"workers have died {self._deaths} times without a result, the last one at {task.name}")
        self._tasks.appendleft(task)
        self._idle.append(self._actor.remote(*self._given))
        self._hand_out()

    def _look(self) -> None:
        """Raises WorkerError where the cluster has become too small."""
        there = self._ray.cluster_resources().get("CPU", 0)
        if there * (1 + 1e-6) < self._executor.cpus:
            raise WorkerError(f"the cluster has {there:g} CPUs left, and workers take {self._executor.cpus:g}")


def cause_of(error: Exception) -> str:
    """What was raised in an actor."""
    cause = getattr(error, "cause", None) or error
    said = f"{type(cause).__name__}: {first_line(cause)}"
    own = "; workers cannot import what a script defines itself: put it into a file of its own"
    return said + own * ("__main__." in said)
