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
    """Result of dispatched work: of `count` iterations, or of an evaluation of the policies of `eval_state`."""

    count: int
    metrics: Metrics
    eval_state: State = None
    # of those policies, beside the evaluation: of JAX at first, of NumPy once they are on the host
    extra_metrics: dict[str, Any] = field(default_factory=dict)
    nonfinite_leaves: Bool[Array, "leaves seeds members"] | None = None  # by the divergence monitor
    start_state: State = None  # the state that a chunk began with
    fallback_state: State = None  # the state before, without replays, where it may be gone back to
    host_status: HostStatus | None = None  # at the host, afterwards


class EvaluationRounds(NamedTuple):
    """Result of an evaluation that consists of several rounds."""

    state: State  # without replays
    metrics: dict[str, np.ndarray]
    seconds: float


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training: its budget, the share of evaluations, and what it keeps and measures."""

    budget: Budget
    evaluation_share: float  # of env steps, or of the time where the budget has minutes, that evaluations take at most
    start_time: float  # when the process began
    debug_nans: bool = False
    keep_rows: bool = True
    measure: Measure | None = None  # beside each evaluation
    evaluator: Evaluator | None = None  # in the place of the workflow's own evaluation
