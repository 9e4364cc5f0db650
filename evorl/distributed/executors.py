"""Executors of tasks: protocols, and the serial executor, which computes them in this process."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from typing_extensions import Protocol, runtime_checkable

from evorl.distributed.task import Task, TaskPrograms, Value


@runtime_checkable
class TaskWorkers(Protocol):
    """Protocol of running workers, which receive tasks and return their results as they become available."""

    def publish(self, name: str, value: Value) -> None:
        """Make a value available to the tasks that read it.

        Args:
            name: Name of the value.
            value: Leaves of the value.
        """
        ...

    def forget(self, name: str) -> None:
        """Remove a value that no further task will read.

        Args:
            name: Name of the value.
        """
        ...

    def submit(self, task: Task) -> None:
        """Submit a task, which waits until a worker is free.

        Args:
            task: The task.
        """
        ...

    def wait_for_result(self) -> tuple[Task, Value]:
        """Wait until any task is complete.

        Returns:
            The task and its result.

        Raises:
            WorkerError: If no result will become available.
        """
        ...


@runtime_checkable
class Executor(Protocol):
    """Protocol of an executor, which starts workers."""

    def start_workers(self, programs: TaskPrograms) -> AbstractContextManager[TaskWorkers]:
        """Start workers, which run until the end of the block.

        Args:
            programs: Programs that compute the tasks.

        Raises:
            OptionError: If the requested number of workers cannot run.
        """
        ...


def compute_parts(workers: TaskWorkers, tasks: Sequence[Task]) -> list[Value]:
    """Submit one task for each part, wait for all of them, and return their results in the order of the tasks."""
    for task in tasks:
        workers.submit(task)
    found: dict[int, Value] = {}
    while len(found) < len(tasks):
        task, value = workers.wait_for_result()
        found[task.part] = value
    return [found[task.part] for task in tasks]


@dataclass(frozen=True)
class SerialExecutor:
    """Executor that computes tasks in this process, sequentially in the order of their submission."""

    @contextmanager
    def start_workers(self, programs: TaskPrograms) -> Iterator[TaskWorkers]:
        """Start a worker that computes a task when its result is requested."""
        yield SerialWorkers(programs)


class SerialWorkers:
    """The single worker of SerialExecutor."""

    def __init__(self, programs: TaskPrograms) -> None:
        self._programs, self._values, self._tasks = programs, dict[str, Value](), deque[Task]()

    def publish(self, name: str, value: Value) -> None:
        self._values[name] = value

    def forget(self, name: str) -> None:
        self._values.pop(name, None)

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def wait_for_result(self) -> tuple[Task, Value]:
        task = self._tasks.popleft()
        return task, self._programs(task, self._values.__getitem__)
