"""Callbacks of a training."""

from collections.abc import Callable

from typing_extensions import Protocol, runtime_checkable

from evorl.training.progress import Progress
from evorl.training.records.rows import Row

Callback = Callable[[Row], None]


@runtime_checkable
class StageCallback(Protocol):
    """Protocol of a callback that is notified of stages before the first row: "tracing", "compiling", "training"."""

    def start_stage(self, name: str) -> None:
        """Handle the start of the stage with this name."""
        ...


@runtime_checkable
class ResumeCallback(Protocol):
    """Protocol of a callback that is notified of the starting point of a training with checkpoints.

    The notification comes before the first row.
    """

    def resume(self, progress: Progress) -> None:
        """Handle the progress from which training starts: that of the newest checkpoint, or an empty one."""
        ...
