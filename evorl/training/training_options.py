"""Options of a driver, and records of the work that it has dispatched."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool

from evorl.training.host_envs import HostStatus
from evorl.training.program import Evaluator, Measure
from evorl.training.progress import Budget
from evorl.types import Metrics, State


@dataclass(frozen=True)
class PendingResult:
    """Result of dispatched work: of `count` iterations, or of an evaluation if `count` is 0."""

    count: int
    metrics: Metrics
    # further metrics of an evaluation: JAX arrays at first, NumPy arrays once they are received
    extra_metrics: dict[str, Any] = field(default_factory=dict)
    nonfinite_leaves: Bool[Array, "leaves seeds members"] | None = None  # from the divergence monitor
    start_state: State = None  # the state before a chunk, with debug_nans
    fallback_state: State = None  # state to return to after a failure, without replay buffers
    host_status: HostStatus | None = None  # status of the host environments after the work


class EvaluationRounds(NamedTuple):
    """Result of an evaluation that consists of several rounds."""

    metrics: dict[str, np.ndarray]
    seconds: float


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training: its budget, the share of evaluations, and what it keeps and measures."""

    budget: Budget
    evaluation_share: float  # maximum share of env steps, or of time if the budget has minutes
    start_time: float  # start of the process
    debug_nans: bool = False
    keep_rows: bool = True
    measure: Measure | None = None  # further metrics of each evaluation
    evaluator: Evaluator | None = None  # replaces the evaluation of the workflow
