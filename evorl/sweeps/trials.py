"""Trials: what a sweep has tried, what came of it, and the samplers that say what to try next."""

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

from evorl.sweeps.space import SearchSpace

STATES = RUNNING, DONE, STOPPED, FAILED = "running", "done", "stopped", "failed"
MIN_USED_SHARE = 0.2  # of a budget, of which a curve tells nothing yet
QUANTILE, MIN_TRIALS = 0.3, 8  # a trial is stopped below this quantile of so many others


ChooseFn: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Evaluation(NamedTuple):
    """A point of a trial's curve."""

    used_share: float  # of its budget, from 0 to 1
    cost: float
    score: float  # NaN where it is none


COST = attrgetter("cost")
FAILED_EVALUATION = Evaluation(1.0, math.nan, math.nan)  # of a trial that has failed


@dataclass(frozen=True)
class SweepTrial:
    """A training with values of its own."""

    number: int
    point: tuple[float, ...]  # [d], in the unit cube
    values: Mapping[str, Any]  # by option
    state: str = RUNNING
    curve: tuple[Evaluation, ...] = ()
    message: str = ""  # why it has failed

    @property
    def score(self) -> float:
        """That of its last evaluation; NaN where it has failed."""
        return self.curve[-1].score if self.curve and self.state != FAILED else math.nan

    @property
    def cost(self) -> float:
        """What it has cost so far."""
        return self.curve[-1].cost if self.curve else 0.0

    @cached_property
    def finite_evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations that have a score."""
        return tuple(one for one in self.curve if math.isfinite(one.score))

    def interpolate_score(self, cost: float) -> float:
        """Return the score at a cost: on the line between two sound evaluations, beyond them that of the nearest."""
        i = bisect_left(self.finite_evaluations, cost, key=COST)
        if i in (0, len(self.finite_evaluations)):
            return self.finite_evaluations[min(i, len(self.finite_evaluations) - 1)].score
        low, high = self.finite_evaluations[i - 1 : i + 1]
        return low.score + (high.score - low.score) / (high.cost - low.cost) * (cost - low.cost)


@runtime_checkable
class Sampler(Protocol):
    """What says which points to try, as a pure function of the trials there are and a seed."""

    def suggest(self, space: SearchSpace, trials: Sequence[SweepTrial], n: int, seed: int) -> Float[np.ndarray, "n d"]:
        """The next n points in the unit cube; trials that are running count as pending."""
        ...


class TrialObservations(NamedTuple):
    """What trials have shown, m points; costs are NaN of those that have failed, whose score is the worst there is."""

    x: Float[np.ndarray, "m d"]
    score: Float[np.ndarray, " m"]
    cost: Float[np.ndarray, " m"]


def collect_observations(
    space: SearchSpace, trials: Sequence[SweepTrial], points: int, choose: ChooseFn | None = None
) -> TrialObservations:
    """Return up to `points` points of the curve of each trial that has ended, as if its budget had ended there.

    Args:
        space: of the trials.
        trials: all of them.
        points: of a curve.
        choose: which points to keep, from their scores [m] and costs [m]; by default all.
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
    """Return up to so many evaluations of a trial, spread evenly, the last one among them; None where it has failed.

    Of the first fifth of its budget there are none; where no budget is searched, there is the last one alone.
    """
    if not math.isfinite(trial.score):
        return [None]
    last = trial.curve[-1]
    if space.budget_index is None:
        return [last]
    least = space.compute_min_share(trial.values)
    known = [
        one for one in trial.finite_evaluations[:-1] if one.used_share > MIN_USED_SHARE and one.used_share >= least
    ] + [last]
    return [known[i] for i in _choose_even_indices(len(known), min(points, len(known)))]


@cache
def _choose_even_indices(count: int, most: int) -> tuple[int, ...]:
    """Return `most` of the places 0 to count - 1, spread evenly from the last one down."""
    return tuple(np.linspace(count - 1, 0, most).round().astype(int)[::-1].tolist())


def select_informative(
    score: Float[np.ndarray, " m"], cost: Float[np.ndarray, " m"], most: int
) -> Int[np.ndarray, " n"]:
    """Return which `most` of m points tell most about the front, in their order; all where there are no more.

    Half are those on the front and those least below the best score at their cost or less, the newest first where they
    are alike. The others are spread evenly over the rest, from the first to the last.
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
    """Return `most` of an array's values, spread evenly from the first to the last; all where there are no more."""
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).round().astype(int)]


def find_pareto_points(score: Float[np.ndarray, " m"], cost: Float[np.ndarray, " m"]) -> Bool[np.ndarray, " m"]:
    """Which points none is better than: none has as much for less, or more for as little."""
    order = np.lexsort((-score, cost))  # the cheapest first, of equal ones the best
    best = np.maximum.accumulate(np.concatenate([[-np.inf], score[order][:-1]]))
    front = np.zeros(len(score), bool)
    front[order] = score[order] > best
    return front & np.isfinite(cost)


def is_behind(trial: SweepTrial, others: Sequence[SweepTrial]) -> bool:
    """Whether to stop a trial: its score is below the 0.3 quantile of the others' at its cost.

    Others are those that have ended and were evaluated at that cost or later, of which there must be 8; between two
    evaluations their score is on the line.
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
