"""How far a training has come, and when it ends."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evorl.errors import OptionError, require

KINDS = ("train", "evaluation")  # of rows


@dataclass(frozen=True)
class Budget:
    """When training ends: at the first limit that every run has reached; minutes include compiling."""

    env_steps: float = math.inf
    episodes: float = math.inf
    iterations: float = math.inf
    minutes: float = math.inf

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            require(limit > 0, name, limit, "must be above 0")
        if all(math.isinf(limit) for limit in vars(self).values()):
            raise OptionError("no budget: give env_steps, episodes, iterations or minutes")

    def used(self, mark: "Mark") -> float:
        """The part of the budget that is used, from 0 to 1."""
        return min(1.0, max(self._parts(mark)))

    def is_timed(self, mark: "Mark") -> bool:
        """Whether time is what uses the budget."""
        clock, *counted = self._parts(mark)
        return clock > max(counted)

    def _parts(self, mark: "Mark") -> list[float]:
        limits = self.minutes, self.env_steps, self.episodes, self.iterations
        return [part / limit for part, limit in zip(mark, limits, strict=True)]


class Mark(NamedTuple):
    """What a budget counts."""

    minutes: float = 0.0
    env_steps: int = 0
    episodes: int = 0
    iterations: int = 0


@dataclass
class Progress:
    """How far a training has come; what a checkpoint keeps beside the state."""

    iteration: int = 0
    marks: list[Any] = field(default_factory=lambda: [Mark()] * 3)  # after each of the last chunks
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))  # handed to the callbacks
    seconds: float = 0.0
    compile_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    host_seconds: float = 0.0  # in callbacks and in saving, most of it while the device is at work
    idle_seconds: float = 0.0  # of the device, which waited for the host
    evaluated: int = -1  # the last point of the schedule that was evaluated
    best: Any = None  # the return of each run's best evaluation
    diverged: list[int | None] = field(default_factory=lambda: [None])  # the iteration by which each run had, or None
    totals: dict[str, list[int]] = field(default_factory=dict)  # counts so far, one for each seed

    @property
    def mark(self) -> Mark:
        env_steps, episodes = (min(self.totals.get(count, [0])) for count in ("env_steps", "episodes"))
        return Mark(self.seconds / 60, env_steps, episodes, self.iteration)

    def mean(self, count: str) -> int:
        """Rounded down."""
        totals = self.totals.get(count, [0])
        return sum(totals) // len(totals)

    def add(self, count: str, values: list[int]) -> None:
        self.totals[count] = [a + b for a, b in zip(self.totals.get(count, [0] * len(values)), values, strict=True)]
