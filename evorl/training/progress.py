"""How far a training has come, and when it ends."""

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from evorl.errors import OptionError, is_number, require

EVALUATION_KEYS = ("env_steps", "return", "low", "high")  # what is kept of an evaluation
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

    def with_max_iterations(self, iterations: int) -> "Budget":
        """The same, ending after so many iterations at the latest; raises OptionError where it has more of its own."""
        full = f"at most {iterations}, after which the workflow is full; a larger capacity has room for more"
        require(
            self.iterations <= iterations or not math.isfinite(self.iterations), "iterations", self.iterations, full
        )
        return replace(self, iterations=min(self.iterations, iterations))

    def compute_used_share(self, mark: "BudgetUsage") -> float:
        """The part of the budget that is used, from 0 to 1."""
        return min(1.0, max(self._compute_used_shares(mark)))

    def may_end(self, before: "BudgetUsage", done: "BudgetUsage", dispatched: int, most: "StepBound") -> bool:
        """Whether the chunk after these two marks, with which `dispatched` iterations have begun, may be the last."""
        if dispatched > done.iterations == 0 and self.is_unbounded(most):
            return True
        return (
            2 * self.compute_used_share(done) - self.compute_used_share(before) >= 1
            or self.count_remaining_iterations(done, dispatched, most) < 1
        )

    def is_unbounded(self, most: "StepBound") -> bool:
        """Whether it counts what a workflow does not bound, so that only a chunk that has come back tells."""
        return math.isinf(most.initial) and math.isfinite(min(self.env_steps, self.episodes))

    def count_remaining_iterations(self, done: "BudgetUsage", dispatched: int, most: "StepBound") -> float:
        """Return how many more iterations can begin so that only the last of them can use up the budget.

        Minutes are left aside, and so are env steps and episodes where `most` does not bound them.

        Args:
            done: what is known to be used.
            dispatched: iterations that have begun, at least those of `done`.
            most: env steps, and so episodes, of an iteration.
        """
        episodes = StepBound(*(max(steps, 1) for steps in most))  # what plays nothing may still count an episode
        begins = dispatched > done.iterations == 0  # those of which nothing is known include the first one
        found = [self.iterations - dispatched]
        for limit, spent, one in (
            (self.env_steps, done.env_steps, most),
            (self.episodes, done.episodes, episodes),
        ):
            if math.isfinite(limit) and math.isfinite(one.initial):
                taken = one.subsequent * (dispatched - done.iterations) + begins * (one.initial - one.subsequent)
                found.append(one.min_iterations(limit - spent - taken, from_start=not dispatched))
        return max(0, min(found))

    @property
    def limits(self) -> dict[str, float]:
        """Those that are finite, by name."""
        return {name: limit for name, limit in vars(self).items() if math.isfinite(limit)}

    def double_limits(self, most: float) -> dict[str, float]:
        """Twice the limits, but at most so many iterations."""
        return {name: min(2 * limit, most if name == "iterations" else math.inf) for name, limit in self.limits.items()}

    @property
    def is_timed(self) -> bool:
        """Whether time may end it."""
        return math.isfinite(self.minutes)

    def _compute_used_shares(self, mark: "BudgetUsage") -> list[float]:
        limits = self.minutes, self.env_steps, self.episodes, self.iterations
        return [part / limit for part, limit in zip(mark, limits, strict=True)]


class BudgetUsage(NamedTuple):
    """What a budget counts."""

    minutes: float = 0.0
    env_steps: int = 0
    episodes: int = 0
    iterations: int = 0


class StepBound(NamedTuple):
    """The most env steps that an iteration takes; infinite where a workflow does not say."""

    initial: float = math.inf
    subsequent: float = math.inf  # after the first one

    def min_iterations(self, env_steps: float, from_start: bool) -> float:
        """Return how many iterations it takes at least until they have taken so many env steps."""
        left = env_steps - self.initial if from_start else env_steps
        if left > 0:
            return from_start + (math.ceil(left / self.subsequent) if self.subsequent else math.inf)
        return int(from_start and env_steps > 0)


@dataclass
class Progress:
    """How far a training has come; what a checkpoint keeps beside the state."""

    iteration: int = 0
    recent_usage: list[Any] = field(default_factory=lambda: [BudgetUsage()] * 3)  # after each of the last chunks
    row_counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))  # handed to the callbacks
    seconds: float = 0.0
    compile_seconds: float = 0.0  # from the start of the process until it trains
    evaluation_seconds: float = 0.0
    evaluation_steps: int = 0  # of the environments, all runs together
    host_seconds: float = 0.0  # in callbacks and in saving, most of it while the device is at work
    idle_seconds: float = 0.0  # of the device, which waited for the host
    latest_evaluation_steps: int = 0  # of those
    iteration_seconds: float = 0.0  # seconds, the most that an iteration of the last chunks took
    evaluation_point: int = -1  # the last point of the schedule that was evaluated
    final_evaluation_iteration: int = -1  # the iteration after which the last evaluation was made, all its rounds
    initial_evaluation: dict[str, float] | None = None  # evaluation: env_steps, return, and its interval, low and high
    latest_evaluation: dict[str, float] | None = None
    best_reevaluation: dict[str, float] | None = None  # the best policies, evaluated anew at the end
    best_returns: list[float] | float | None = None  # of each run's best evaluation
    divergence_iterations: list[int | None] = field(
        default_factory=lambda: [None]
    )  # the iteration by which each run had, or None
    totals: dict[str, list[int]] = field(default_factory=dict)  # counts so far, one for each seed

    @classmethod
    def from_dict(cls, saved: dict[str, Any], num_seeds: int) -> "Progress":
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
            returns = np.asarray(math.nan if progress.best_returns is None else progress.best_returns, float)
            right = all(
                len(values) == num_seeds for values in (progress.divergence_iterations, *progress.totals.values())
            )
            right &= progress.best_returns is None or num_seeds == 1 or len(returns) == num_seeds
            right &= len([BudgetUsage(*mark) for mark in progress.recent_usage]) == 3 and set(
                progress.row_counts
            ) == set(KINDS)
            evaluations = [
                one
                for one in (progress.initial_evaluation, progress.latest_evaluation, progress.best_reevaluation)
                if one is not None
            ]
            right &= all(set(one) == set(EVALUATION_KEYS) for one in evaluations)
            counts = [progress.iteration, progress.evaluation_point, progress.final_evaluation_iteration]
            counts += [progress.evaluation_steps, progress.latest_evaluation_steps, *progress.row_counts.values()]
            counts += [one for one in progress.divergence_iterations if one is not None]
            counts += [count for values in progress.totals.values() for count in values]
            right &= all(type(count) is int and -1 <= count < 2**63 for count in counts) and progress.iteration < 2**32
            seconds = [getattr(progress, field.name) for field in fields(cls) if field.type in (float, "float")]
            numbers = [*progress.usage, *seconds, *(x for mark in progress.recent_usage for x in mark)]
            right &= all(type(x) in (int, float) and math.isfinite(x) for x in numbers)
            right &= all(type(x) in (int, float) for one in evaluations for x in one.values())
        except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise problem from error
        if not right:
            raise problem
        return progress

    @property
    def usage(self) -> BudgetUsage:
        """How much of any budget is used, by the seed that has used the least."""
        env_steps, episodes = (min(self.totals.get(count, [0])) for count in ("env_steps", "episodes"))
        return BudgetUsage((self.seconds - self.compile_seconds) / 60, env_steps, episodes, self.iteration)

    def has_evaluation_room(self, env_steps: int, share: float) -> bool:
        """Whether one more evaluation would leave them all at most a share of the env steps, with so many trained."""
        cost, spent = self.latest_evaluation_steps, self.evaluation_steps
        return spent + cost <= share * (env_steps + spent + cost)

    def mean(self, count: str) -> int:
        """Rounded down."""
        totals = self.totals.get(count, [0])
        return sum(totals) // len(totals)

    def add(self, count: str, values: list[int]) -> None:
        """Adds the count of every seed."""
        self.totals[count] = [a + b for a, b in zip(self.totals.get(count, [0] * len(values)), values, strict=True)]
