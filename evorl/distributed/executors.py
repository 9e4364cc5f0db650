"""Who computes tasks: this process, in turn, or others."""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from typing_extensions import Protocol, runtime_checkable

from evorl.distributed.task import Task, TaskPrograms, Value


@runtime_checkable
class TaskWorkers(Protocol):
    """What is at work: it is handed tasks, and gives their results as they come."""

    def publish(self, name: str, value: Value) -> None:
        """Makes a value known to those who compute tasks that read it."""
        ...

    def forget(self, name: str) -> None:
        """Drops a value that no task will read."""
        ...

    def submit(self, task: Task) -> None:
        """Hands over a task, which waits until somebody has time for it."""
        ...

    def wait_for_result(self) -> tuple[Task, Value]:
        """Waits for a task, and gives what came out of it; raises WorkerError where nothing will come."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Who computes tasks."""

    def start_workers(self, programs: TaskPrograms) -> AbstractContextManager[TaskWorkers]:
        """Workers until the block ends; raises OptionError where there cannot be as many."""
        ...


@dataclass(frozen=True)
class SerialExecutor:
    """Computes tasks here, one after the other in the order in which they come."""

    @contextmanager
    def start_workers(self, programs: TaskPrograms) -> Iterator[TaskWorkers]:
        yield SerialWorkers(programs)


class SerialWorkers:
    """The one worker of SerialExecutor."""

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
