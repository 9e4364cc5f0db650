"""Result of one iteration of a distributed training."""

from dataclasses import dataclass
from typing import Any

from evorl.types import Metrics


@dataclass(frozen=True)
class Iteration:
    """Result of one iteration: the state of the workflow after it, and its metrics."""

    number: int  # from 1
    state: Any
    metrics: Metrics
    seconds: float  # since the call began; for PSRO including those before a resume
