"""Budget and progress of a training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from evorl.errors import OptionError, is_number, require

EVALUATION_KEYS = ("env_steps", "return", "low", "high")  # entries of an evaluation in the progress
KINDS = ("train", "evaluation")  # kinds of rows
T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """Limits of a training, which ends at the first limit that every run has reached.

    Args:
        env_steps: Maximum number of env steps per run.
        episodes: Maximum number of episodes per run.
        iterations: Maximum number of iterations.
        minutes: Maximum duration in minutes, without compilation.

    Raises:
        OptionError: A limit is not above 0, the number of iterations is not whole, or no limit is finite.
    """

    env_steps: float = math.inf
    episodes: float = math.inf
    iterations: float = math.inf
    minutes: float = math.inf

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            require(is_number(limit) and limit > 0, name, limit, "must be above 0")
        whole = math.isinf(self.iterations) or self.iterations == int(self.iterations)
        require(whole, "iterations", self.iterations, "must be a whole number")
        if not self.limits:
            raise OptionError("no budget: give env_steps, episodes, iterations or minutes")

    def with_max_iterations(self, iterations: int) -> "Budget":
        """Return the budget with at most the given number of iterations.

        Args:
            iterations: Maximum number of iterations, for example because the workflow is then full.

        Returns:
            The new budget.

        Raises:
            OptionError: The budget has a larger finite number of iterations.
        """
        full = f"must be at most {iterations}, when the policy pool is full; use a larger capacity"
        require(
            self.iterations <= iterations or not math.isfinite(self.iterations), "iterations", self.iterations, full
        )
        return replace(self, iterations=min(self.iterations, iterations))

    def compute_used_share(self, usage: "BudgetUsage") -> float:
        """Return the used share of the budget, from 0 to 1.

        Args:
            usage: Usage so far.
        """
        return min(1.0, max(self._compute_used_shares(usage)))

    def may_end(self, before: "BudgetUsage", done: "BudgetUsage", dispatched: int, most: "StepBound") -> bool:
        """Return whether the chunk that was dispatched last may use up the budget.

        Args:
            before: Usage before the last two chunks.
            done: Usage before the last chunk.
            dispatched: Number of iterations that have started, including those of the last chunk.
            most: Maximum number of env steps of an iteration.
        """
        if dispatched > done.iterations == 0 and self.is_unbounded(most):
            return True
        return (
            2 * self.compute_used_share(done) - self.compute_used_share(before) >= 1
            or self.count_remaining_iterations(done, dispatched, most) < 1
        )

    def is_unbounded(self, most: "StepBound") -> bool:
        """Return whether the budget limits env steps or episodes and the workflow does not bound them per iteration.

        Then only the results of a chunk show how much of the budget is used.

        Args:
            most: Maximum number of env steps of an iteration.
        """
        return math.isinf(most.initial) and math.isfinite(min(self.env_steps, self.episodes))

    def count_remaining_iterations(self, done: "BudgetUsage", dispatched: int, most: "StepBound") -> float:
        """Return the largest number of iterations that may still be dispatched.

        None of them may start after the budget has ended, so all of them but the last must be certain to
        leave a part of the budget. Minutes are ignored, and so are env steps and episodes if `most` is
        infinite, which means that the workflow does not bound them. The result is infinite if no other limit
        is left.

        Args:
            done: Known usage.
            dispatched: Number of iterations that have started, at least those of `done`.
            most: Maximum number of env steps of an iteration, which also bounds its episodes.
        """
        episodes = StepBound(*(max(steps, 1) for steps in most))  # even without env steps, an episode may count
        begins = dispatched > done.iterations == 0  # the first iteration is among those without known usage
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
        """Return the finite limits by name."""
        return {name: limit for name, limit in vars(self).items() if math.isfinite(limit)}

    def double_limits(self, most: float) -> dict[str, float]:
        """Return twice the finite limits by name, with at most the given number of iterations.

        Args:
            most: Maximum number of iterations.
        """
        return {name: min(2 * limit, most if name == "iterations" else math.inf) for name, limit in self.limits.items()}

    @property
    def is_timed(self) -> bool:
        """Return whether the budget limits the minutes."""
        return math.isfinite(self.minutes)

    def _compute_used_shares(self, usage: "BudgetUsage") -> list[float]:
        limits = self.minutes, self.env_steps, self.episodes, self.iterations
        return [part / limit for part, limit in zip(usage, limits, strict=True)]


class BudgetUsage(NamedTuple):
    """Amounts that a budget limits."""

    minutes: float = 0.0
    env_steps: int = 0
    episodes: int = 0
    iterations: int = 0


class StepBound(NamedTuple):
    """Maximum number of env steps of an iteration; infinite if the workflow does not bound them."""

    initial: float = math.inf
    subsequent: float = math.inf  # of each iteration after the first

    def min_iterations(self, env_steps: float, from_start: bool) -> float:
        """Return the minimum number of iterations until they have taken the given number of env steps."""
        left = env_steps - self.initial if from_start else env_steps
        if left > 0:
            return from_start + (math.ceil(left / self.subsequent) if self.subsequent else math.inf)
        return int(from_start and env_steps > 0)


def select_sound(values: Sequence[T], diverged: Sequence[Any]) -> list[T]:
    """Return the values of the seeds that have not diverged; those of all if all have, or if it is not known."""
    return [x for x, lost in zip(values, diverged, strict=False) if not lost] or [*values]


@dataclass
class Progress:
    """Progress of a training, which a checkpoint contains in addition to the state."""

    iteration: int = 0
    recent_usage: list[BudgetUsage] = field(default_factory=lambda: [BudgetUsage()] * 3)  # after the last three chunks
    row_counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))  # rows passed to the callbacks
    seconds: float = 0.0
    compile_seconds: float = 0.0  # from the start of the process to the first iteration
    evaluation_seconds: float = 0.0
    evaluation_steps: int = 0  # env steps of evaluations, sum over runs
    host_seconds: float = 0.0  # in callbacks and saving, mostly while the device is busy
    idle_seconds: float = 0.0  # time in which the device waited for the host
    latest_evaluation_steps: int = 0  # evaluation_steps of the last evaluation
    iteration_seconds: float = 0.0  # maximum over the last chunks
    evaluation_point: int = -1  # last point of the schedule that was evaluated
    final_evaluation_iteration: int = -1  # iteration of the complete final evaluation
    initial_evaluation: dict[str, float] | None = None  # its keys are EVALUATION_KEYS
    latest_evaluation: dict[str, float] | None = None
    best_reevaluation: dict[str, float] | None = None  # the best policies, evaluated again at the end
    best_returns: list[float] | float | None = None  # return of the best evaluation of each run
    divergence_iterations: list[int | None] = field(
        default_factory=lambda: [None]
    )  # iteration by which each run had diverged, or None
    totals: dict[str, list[int]] = field(default_factory=dict)  # counts so far, one per seed

    @classmethod
    def from_dict(cls, saved: dict[str, Any], num_seeds: int) -> "Progress":
        """Restore the progress from a checkpoint.

        Args:
            saved: Fields, as read from JSON.
            num_seeds: Number of seeds of the training.

        Raises:
            OptionError: The fields are not a valid progress of this number of runs.
        """
        problem = OptionError(f"the progress in the checkpoint is not valid for a training with {num_seeds} seeds")
        try:
            usages: Any = {"recent_usage": [BudgetUsage(*usage) for usage in saved["recent_usage"]]}
            progress = cls(**saved | usages)
            returns = np.asarray(math.nan if progress.best_returns is None else progress.best_returns, float)
            right = all(
                len(values) == num_seeds for values in (progress.divergence_iterations, *progress.totals.values())
            )
            right &= progress.best_returns is None or num_seeds == 1 or len(returns) == num_seeds
            right &= len(progress.recent_usage) == 3 and set(progress.row_counts) == set(KINDS)
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
            numbers = [*progress.usage, *seconds, *(x for usage in progress.recent_usage for x in usage)]
            right &= all(type(x) in (int, float) and math.isfinite(x) for x in numbers)
            right &= all(type(x) in (int, float) for one in evaluations for x in one.values())
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise problem from error
        if not right:
            raise problem
        return progress

    @property
    def usage(self) -> BudgetUsage:
        """Return the budget usage of the seed that has used the least, among those that have not diverged.

        A seed whose actions are NaN takes no valid steps; if all have diverged, all count.
        """
        lost = [at is not None for at in self.divergence_iterations]
        env_steps, episodes = (
            min(select_sound(self.totals.get(count, [0]), lost)) for count in ("env_steps", "episodes")
        )
        return BudgetUsage((self.seconds - self.compile_seconds) / 60, env_steps, episodes, self.iteration)

    def has_evaluation_room(self, env_steps: int, share: float) -> bool:
        """Return whether evaluations, including one more, would take at most a share of all env steps.

        `env_steps` are those of the training so far.
        """
        cost, spent = self.latest_evaluation_steps, self.evaluation_steps
        return spent + cost <= share * (env_steps + spent + cost)

    def claim_evaluation(self, point: int, has_room: bool) -> bool:
        """Mark a point of the schedule as evaluated if it is new and there is room; return whether it was marked."""
        if point <= self.evaluation_point or not has_room:
            return False
        self.evaluation_point = point
        return True

    def mean(self, count: str) -> int:
        """Return the mean of a count over the seeds that have not diverged, or all if all have, rounded down."""
        totals = self.totals.get(count, [0])
        totals = (
            select_sound(totals, [x is not None for x in self.divergence_iterations]) if len(totals) > 1 else totals
        )
        return sum(totals) // len(totals)

    def add(self, count: str, values: list[int]) -> None:
        """Add the values of all seeds to a count."""
        self.totals[count] = [a + b for a, b in zip(self.totals.get(count, [0] * len(values)), values, strict=True)]
