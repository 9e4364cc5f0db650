"""Who computes tasks: this process, in turn, or others."""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from evorl.distributed.task import Programs, Task, Value


@runtime_checkable
class Workers(Protocol):
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

    def completed(self) -> tuple[Task, Value]:
        """Waits for a task, and gives what came out of it; raises WorkerError where nothing will come."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Who computes tasks."""

    def begun(self, programs: Programs) -> AbstractContextManager[Workers]:
        """Workers until the block ends; raises OptionError where there cannot be as many."""
        ...


@dataclass(frozen=True)
class Serial:
    """Computes tasks here, one after the other in the order in which they come."""

    @contextmanager
    def begun(self, programs: Programs) -> Iterator[Workers]:
        yield InTurn(programs)


class InTurn:
    """The one worker of Serial."""

    def __init__(self, programs: Programs) -> None:
        self._programs, self._values, self._tasks = programs, dict[str, Value](), deque[Task]()

    def publish(self, name: str, value: Value) -> None:
        self._values[name] = value

    def forget(self, name: str) -> None:
        self._values.pop(name, None)

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def completed(self) -> tuple[Task, Value]:
        task = self._tasks.popleft()
        return task, self._programs(task, self._values.__getitem__)
