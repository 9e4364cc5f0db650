"""What a driver is told, and what it has handed to the device."""

from dataclasses import dataclass, field
from typing import Any

from evorl.training.hosts import Look
from evorl.training.program import Exam, Measure
from evorl.training.progress import Budget
from evorl.types import State


@dataclass(frozen=True)
class InFlight:
    """What the device was handed: count iterations, or an evaluation of the policies `evaluated`."""

    count: int
    metrics: Any
    evaluated: State = None
    measured: Any = field(default_factory=dict)  # of those policies, beside the evaluation
    found: Any = None  # by the sentinel
    before: State = None  # the state that a chunk began with
    kept: State = None  # the state before, without replays, where it may be gone back to
    look: Look | None = None  # at the host, afterwards


@dataclass(frozen=True)
class Terms:
    """How long a training goes on, what it spends on evaluations, and what it keeps."""

    budget: Budget
    share: float  # of env steps, or of the time where the budget has minutes, that evaluations take at most
    started: float  # when the process began
    debug_nans: bool = False
    keep_rows: bool = True
    measure: Measure | None = None  # beside each evaluation
    exam: Exam | None = None  # in the place of the workflow's own evaluation
