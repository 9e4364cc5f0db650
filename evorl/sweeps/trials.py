"""Trials of a sweep, their results, and the protocol of samplers, which suggest the next trials."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from typing_extensions import Protocol, runtime_checkable

from evorl.sweeps.space import SIGNIFICANT_DIGITS, SearchSpace

STATES = RUNNING, DONE, STOPPED, FAILED = "running", "done", "stopped", "failed"
MIN_USED_SHARE = 0.2  # evaluations in this first share of the budget are ignored
QUANTILE, MIN_TRIALS = 0.3, 8  # a trial is stopped below this quantile of at least MIN_TRIALS others


ChooseFn: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Evaluation(NamedTuple):
    """Point of the learning curve of a trial."""

    used_share: float  # share of the budget, from 0 to 1
    cost: float
    score: float  # NaN if there is none


COST = attrgetter("cost")
FAILED_EVALUATION = Evaluation(1.0, math.nan, math.nan)  # stands for a failed trial


@dataclass(frozen=True)
class SweepTrial:
    """Trial: a training with its own values of the searched options."""

    number: int
    point: tuple[float, ...]  # in the unit cube, shape [d]
    values: Mapping[str, Any]  # by option
    state: str = RUNNING
    curve: tuple[Evaluation, ...] = ()
    message: str = ""  # why the trial failed

    @property
    def score(self) -> float:
        """Return the score of the last evaluation; NaN if the trial failed or has none."""
        return self.curve[-1].score if self.curve and self.state != FAILED else math.nan

    @property
    def cost(self) -> float:
        """Return the cost so far."""
        return self.curve[-1].cost if self.curve else 0.0

    @cached_property
    def finite_evaluations(self) -> tuple[Evaluation, ...]:
        """Return the evaluations with a finite score."""
        return tuple(one for one in self.curve if math.isfinite(one.score))

    def interpolate_score(self, cost: float) -> float:
        """Return the score at a cost by linear interpolation between finite evaluations.

        Outside of their range, it is the score of the nearest evaluation.
        """
        i = bisect_left(self.finite_evaluations, cost, key=COST)
        if i in (0, len(self.finite_evaluations)):
            return self.finite_evaluations[min(i, len(self.finite_evaluations) - 1)].score
        low, high = self.finite_evaluations[i - 1 : i + 1]
        return low.score + (high.score - low.score) / (high.cost - low.cost) * (cost - low.cost)


@runtime_checkable
class Sampler(Protocol):
    """Protocol of a sampler, which suggests the next points to try.

    `suggest` is a pure function of the search space, the existing trials, the number of points and a seed.
    """

    def suggest(self, space: SearchSpace, trials: Sequence[SweepTrial], n: int, seed: int) -> Float[np.ndarray, "n d"]:
        """Return the next points to try.

        Args:
            space: Search space with d options.
            trials: All existing trials. Running trials count as pending.
            n: Number of points.
            seed: Seed of the sweep.

        Returns:
            Points in the unit cube, shape [n, d].
        """
        ...


class TrialObservations(NamedTuple):
    """Observed scores and costs of m points. A failed trial has the worst observed score and a cost of NaN."""

    x: Float[np.ndarray, "m d"]
    score: Float[np.ndarray, " m"]
    cost: Float[np.ndarray, " m"]


def collect_observations(
    space: SearchSpace, trials: Sequence[SweepTrial], points: int, choose: ChooseFn | None = None
) -> TrialObservations:
    """Return up to `points` points of the curve of each trial that has ended, as if its budget had ended there.

    Args:
        space: Search space of the trials.
        trials: All trials.
        points: Maximum number of points of each curve.
        choose: Function that returns the indices of the points to keep, from their scores [m] and costs [m];
            None to keep all.
    """
    ended = [trial for trial in trials if trial.state != RUNNING]
    found = [(trial, at) for trial in ended for at in thin_curve(space, trial, points)]
    score = np.array([FAILED_EVALUATION.score if at is None else at.score for _, at in found], float)
    cost = np.array([FAILED_EVALUATION.cost if at is None else at.cost for _, at in found], float)
    worst = np.nanmin(score) if np.isfinite(score).any() else 0.0
    score = np.nan_to_num(score, nan=worst)
    kept = np.arange(len(found)) if choose is None else choose(score, cost)
    u = np.reshape([found[i][0].point for i in kept], (-1, space.size))
    used = np.array([1.0 if (at := found[i][1]) is None else at.used_share for i in kept])
    return TrialObservations(space.truncate_budgets(u, used), score[kept], cost[kept])


def thin_curve(space: SearchSpace, trial: SweepTrial, points: int) -> list[Evaluation | None]:
    """Return up to `points` evaluations of a trial, spread evenly and including the last; [None] if it failed.

    Evaluations in the first fifth of the budget, or below the smallest searched budget, are left out, except
    for the last one. If no budget is searched, or one of a list, only the last evaluation is returned, with
    the cost of the whole budget.
    """
    if not math.isfinite(trial.score):
        return [None]
    last = trial.curve[-1]
    if space.budget_index is None or space.num_listed_budgets:
        return [last._replace(cost=_extrapolate_cost(trial.curve))]
    least = space.compute_min_share(trial.values)
    known = [
        one for one in trial.finite_evaluations[:-1] if one.used_share > MIN_USED_SHARE and one.used_share >= least
    ] + [last]
    return [known[i] for i in _choose_even_indices(len(known), min(points, len(known)))]


def _extrapolate_cost(curve: Sequence[Evaluation]) -> float:
    """Return the cost of the whole budget, from the last evaluation before its end, which training may exceed."""
    one = next((one for one in reversed(curve) if MIN_USED_SHARE < one.used_share < 1), curve[-1])
    cost = one.cost / max(one.used_share, MIN_USED_SHARE)
    return float(f"{cost:.{SIGNIFICANT_DIGITS}g}")  # so that rounding makes no trial cheaper than another


@cache
def _choose_even_indices(count: int, most: int) -> tuple[int, ...]:
    """Return `most` of the indices 0 to count - 1, spread evenly from the last one down."""
    return tuple(np.linspace(count - 1, 0, most).round().astype(int)[::-1].tolist())


def select_informative(
    score: Float[np.ndarray, " m"], cost: Float[np.ndarray, " m"], most: int
) -> Int[np.ndarray, " n"]:
    """Return the sorted indices of the `most` of m points that are most informative about the Pareto front.

    Half of them are the points on the front, and the points closest below the best score at the same or a
    lower cost; of equal ones, the newest. The others are spread evenly over the remaining points. If m <=
    most, all points are returned.
    """
    if len(score) <= most:
        return np.arange(len(score))
    order = np.lexsort((-score, cost))
    below = np.empty(len(score))
    below[order] = np.maximum.accumulate(score[order]) - score[order]
    below[np.isnan(cost)] = np.inf
    nearest = np.lexsort((-np.arange(len(score)), below, ~find_pareto_points(score, cost)))[: most // 2]
    rest = np.setdiff1d(np.arange(len(score)), nearest)
    return np.sort(np.concatenate([nearest, subsample_evenly(rest, most - len(nearest))]))


def subsample_evenly(values: Any, most: int) -> Any:
    """Return `most` values of an array, spread evenly from the first to the last; all if there are no more."""
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).round().astype(int)]


def find_pareto_points(score: Float[np.ndarray, " m"], cost: Float[np.ndarray, " m"]) -> Bool[np.ndarray, " m"]:
    """Return a mask of the Pareto-optimal points, shape [m].

    A point is not optimal if another one has at least its score at a lower cost, or a higher score at no
    higher cost.
    """
    order = np.lexsort((-score, cost))  # by increasing cost; at equal cost, the best first
    best = np.maximum.accumulate(np.concatenate([[-np.inf], score[order][:-1]]))
    front = np.zeros(len(score), bool)
    front[order] = score[order] > best
    return front & np.isfinite(cost)


def is_behind(trial: SweepTrial, others: Sequence[SweepTrial]) -> bool:
    """Return whether to stop a trial, because its score is below the 0.3 quantile of the others at its cost.

    The others are the trials that were completed or stopped and reached that cost. There must be at least 8.
    Between two evaluations, their score is interpolated linearly. A trial is not stopped in the first fifth
    of its budget.
    """
    now = trial.curve[-1]
    if now.used_share <= MIN_USED_SHARE:
        return False
    scores = [
        other.interpolate_score(now.cost)
        for other in others
        if other.number != trial.number
        and other.state in (DONE, STOPPED)
        and other.cost >= now.cost
        and other.finite_evaluations
    ]
    return len(scores) >= MIN_TRIALS and not now.score >= np.quantile(scores, QUANTILE)
