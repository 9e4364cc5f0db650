"""How far a training has come, and when it ends."""

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from evorl.errors import OptionError, is_number, require

EVALUATED = ("env_steps", "return", "low", "high")  # what is kept of an evaluation
KINDS = ("train", "evaluation")  # of rows


@dataclass(frozen=True)
class Budget:
    """When training ends: at the first limit that every run has reached; minutes are without compiling."""

    env_steps: float = math.inf
    episodes: float = math.inf
    iterations: float = math.inf
    minutes: float = math.inf

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            require(is_number(limit) and limit > 0, name, limit, "must be above 0")
        if not self.limits:
            raise OptionError("no budget: give env_steps, episodes, iterations or minutes")

    def within(self, iterations: int) -> "Budget":
        """The same, ending after so many iterations at the latest; raises OptionError where it has more of its own."""
        full = f"at most {iterations}, after which the workflow is full; a larger capacity has room for more"
        require(
            self.iterations <= iterations or not math.isfinite(self.iterations), "iterations", self.iterations, full
        )
        return replace(self, iterations=min(self.iterations, iterations))

    def used(self, mark: "Mark") -> float:
        """The part of the budget that is used, from 0 to 1."""
        return min(1.0, max(self._parts(mark)))

    def may_end(self, before: "Mark", done: "Mark", dispatched: int, most: "Most") -> bool:
        """Whether the chunk after these two marks, with which `dispatched` iterations have begun, may be the last."""
        if dispatched > done.iterations == 0 and self.is_open(most):
            return True
        return 2 * self.used(done) - self.used(before) >= 1 or self.room(done, dispatched, most) < 1

    def is_open(self, most: "Most") -> bool:
        """Whether it counts what a workflow does not bound, so that only a chunk that has come back tells."""
        return math.isinf(most.first) and math.isfinite(min(self.env_steps, self.episodes))

    def room(self, done: "Mark", dispatched: int, most: "Most") -> float:
        """Return how many more iterations can begin so that only the last of them can use up the budget.

        Minutes are left aside, and so are env steps and episodes where `most` does not bound them.

        Args:
            done: what is known to be used.
            dispatched: iterations that have begun, at least those of `done`.
            most: env steps, and so episodes, of an iteration.
        """
        episodes = Most(*(max(steps, 1) for steps in most))  # what plays nothing may still count an episode
        begins = dispatched > done.iterations == 0  # those of which nothing is known include the first one
        found = [self.iterations - dispatched]
        for limit, spent, one in (
            (self.env_steps, done.env_steps, most),
            (self.episodes, done.episodes, episodes),
        ):
            if math.isfinite(limit) and math.isfinite(one.first):
                taken = one.later * (dispatched - done.iterations) + begins * (one.first - one.later)
                found.append(one.iterations(limit - spent - taken, from_start=not dispatched))
        return max(0, min(found))

    @property
    def limits(self) -> dict[str, float]:
        """Those that are finite, by name."""
        return {name: limit for name, limit in vars(self).items() if math.isfinite(limit)}

    def doubled(self, most: float) -> dict[str, float]:
        """Twice the limits, but at most so many iterations."""
        return {name: min(2 * limit, most if name == "iterations" else math.inf) for name, limit in self.limits.items()}

    @property
    def is_timed(self) -> bool:
        """Whether time may end it."""
        return math.isfinite(self.minutes)

    def _parts(self, mark: "Mark") -> list[float]:
        limits = self.minutes, self.env_steps, self.episodes, self.iterations
        return [part / limit for part, limit in zip(mark, limits, strict=True)]


class Mark(NamedTuple):
    """What a budget counts."""

    minutes: float = 0.0
    env_steps: int = 0
    episodes: int = 0
    iterations: int = 0


class Most(NamedTuple):
    """The most env steps that an iteration takes; infinite where a workflow does not say."""

    first: float = math.inf
    later: float = math.inf  # after the first one

    def iterations(self, env_steps: float, from_start: bool) -> float:
        """Return how many iterations it takes at least until they have taken so many env steps."""
        left = env_steps - self.first if from_start else env_steps
        if left > 0:
            return from_start + (math.ceil(left / self.later) if self.later else math.inf)
        return int(from_start and env_steps > 0)


@dataclass
class Progress:
    """How far a training has come; what a checkpoint keeps beside the state."""

    iteration: int = 0
    marks: list[Any] = field(default_factory=lambda: [Mark()] * 3)  # after each of the last chunks
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))  # handed to the callbacks
    seconds: float = 0.0
    compile_seconds: float = 0.0  # from the start of the process until it trains
    evaluation_seconds: float = 0.0
    evaluation_steps: int = 0  # of the environments, all runs together
    host_seconds: float = 0.0  # in callbacks and in saving, most of it while the device is at work
    idle_seconds: float = 0.0  # of the device, which waited for the host
    last_evaluation_steps: int = 0  # of those
    pace: float = 0.0  # seconds, the most that an iteration of the last chunks took
    evaluated: int = -1  # the last point of the schedule that was evaluated
    examined: int = -1  # the iteration after which the last evaluation was made, all its rounds
    first: dict[str, float] | None = None  # evaluation: env_steps, return, and its interval, low and high
    last: dict[str, float] | None = None
    tested: dict[str, float] | None = None  # the best policies, evaluated anew at the end
    best: Any = None  # the return of each run's best evaluation
    diverged: list[int | None] = field(default_factory=lambda: [None])  # the iteration by which each run had, or None
    totals: dict[str, list[int]] = field(default_factory=dict)  # counts so far, one for each seed

    @classmethod
    def of(cls, saved: dict[str, Any], num_seeds: int) -> "Progress":
        """Return what a checkpoint has kept.

        Args:
            saved: the fields, from JSON.
            num_seeds: of the training.

        Raises:
            OptionError: where that is not the progress of so many runs.
        """
        problem = OptionError(f"the checkpoint's progress is not that of a training of {num_seeds} seeds")
        try:
            progress = cls(**saved)
            returns = np.asarray(math.nan if progress.best is None else progress.best, float)
            right = all(len(values) == num_seeds for values in (progress.diverged, *progress.totals.values()))
            right &= progress.best is None or num_seeds == 1 or len(returns) == num_seeds
            right &= len([Mark(*mark) for mark in progress.marks]) == 3 and set(progress.rows) == set(KINDS)
            evaluations = [one for one in (progress.first, progress.last, progress.tested) if one is not None]
            right &= all(set(one) == set(EVALUATED) for one in evaluations)
            counts = [progress.iteration, progress.evaluated, progress.examined]
            counts += [progress.evaluation_steps, progress.last_evaluation_steps, *progress.rows.values()]
            counts += [one for one in progress.diverged if one is not None]
            counts += [count for values in progress.totals.values() for count in values]
            right &= all(type(count) is int and -1 <= count < 2**63 for count in counts) and progress.iteration < 2**32
            seconds = [getattr(progress, field.name) for field in fields(cls) if field.type in (float, "float")]
            numbers = [*progress.mark, *seconds, *(x for mark in progress.marks for x in mark)]
            right &= all(type(x) in (int, float) and math.isfinite(x) for x in numbers)
            right &= all(type(x) in (int, float) for one in evaluations for x in one.values())
        except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise problem from error
        if not right:
            raise problem
        return progress

    @property
    def mark(self) -> Mark:
        """How much of any budget is used, by the seed that has used the least."""
        env_steps, episodes = (min(self.totals.get(count, [0])) for count in ("env_steps", "episodes"))
        return Mark((self.seconds - self.compile_seconds) / 60, env_steps, episodes, self.iteration)

    def has_room(self, env_steps: int, share: float) -> bool:
        """Whether one more evaluation would leave them all at most a share of the env steps, with so many trained."""
        cost, spent = self.last_evaluation_steps, self.evaluation_steps
        return spent + cost <= share * (env_steps + spent + cost)

    def mean(self, count: str) -> int:
        """Rounded down."""
        totals = self.totals.get(count, [0])
        return sum(totals) // len(totals)

    def add(self, count: str, values: list[int]) -> None:
        """Adds the count of every seed."""
        self.totals[count] = [a + b for a, b in zip(self.totals.get(count, [0] * len(values)), values, strict=True)]
