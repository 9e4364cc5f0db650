"""What a training tells while it runs."""

from collections.abc import Callable

from typing_extensions import Protocol, runtime_checkable

from evorl.training.progress import Progress
from evorl.training.records.rows import Row

Callback = Callable[[Row], None]


@runtime_checkable
class StageCallback(Protocol):
    """A callback that is told what happens before the first row: "tracing", "compiling", "training"."""

    def start_stage(self, name: str) -> None:
        """Takes the name of what has begun."""
        ...


@runtime_checkable
class ResumeCallback(Protocol):
    """A callback that is told what a training with checkpoints goes on from, before its first row comes."""

    def resume(self, progress: Progress) -> None:
        """Takes how far the checkpoint had come."""
        ...
