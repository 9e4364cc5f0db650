"""Trials: what a sweep has tried, what came of it, and the samplers that say what to try next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from evorl.sweeps.space import SearchSpace

STATES = RUNNING, DONE, STOPPED, FAILED = "running", "done", "stopped", "failed"
FIRST = 0.2  # of a budget, of which a curve tells nothing yet
QUANTILE, LEAST = 0.3, 8  # a trial is stopped below this quantile of so many others


class Evaluation(NamedTuple):
    """A point of a trial's curve."""

    used: float  # of its budget, from 0 to 1
    cost: float
    score: float  # NaN where it is none


@dataclass(frozen=True)
class Trial:
    """A training with values of its own."""

    number: int
    point: tuple[float, ...]  # [d], in the unit cube
    values: Mapping[str, float]  # by option
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


@runtime_checkable
class Sampler(Protocol):
    """What says which points to try, as a pure function of the trials there are and a seed."""

    def suggest(self, space: SearchSpace, trials: Sequence[Trial], n: int, seed: int) -> Float[np.ndarray, "n d"]:
        """The next n points in the unit cube; trials that are running count as pending."""
        ...


class Observed(NamedTuple):
    """What trials have shown, m points; costs are NaN of those that have failed, whose score is the worst there is."""

    x: Float[np.ndarray, "m d"]
    score: Float[np.ndarray, " m"]
    cost: Float[np.ndarray, " m"]


def observed(space: SearchSpace, trials: Sequence[Trial], points: int) -> Observed:
    """Of each trial that has ended up to `points` points of its curve, as if its budget had ended there."""
    x, score, cost = [], [], []
    for trial in trials:
        if trial.state == RUNNING:
            continue
        if not math.isfinite(trial.score):
            x.append(np.array(trial.point))
            score.append(math.nan)
            cost.append(math.nan)
            continue
        for at, point in thinned(space, trial, points):
            x.append(point)
            score.append(at.score)
            cost.append(at.cost)
    scores = np.array(score)
    worst = np.nanmin(scores) if np.isfinite(scores).any() else 0.0
    return Observed(np.reshape(x, (-1, space.size)), np.nan_to_num(scores, nan=worst), np.array(cost))


def thinned(space: SearchSpace, trial: Trial, points: int) -> list[tuple[Evaluation, Float[np.ndarray, " d"]]]:
    """Up to so many evaluations of a trial, spread evenly, the last one among them, and where each would lie.

    None from the first fifth of its budget; where no budget is searched, the last one alone.
    """
    u, last = np.array(trial.point), trial.curve[-1]
    if space.budget is None:
        return [(last, u)]
    told = [one for one in trial.curve[:-1] if one.used > FIRST and math.isfinite(one.score)] + [last]
    known = [(one, point) for one in told if (point := space.ended(u, one.used)) is not None]
    if not known:
        return [(last, u)]
    places = np.linspace(len(known) - 1, 0, min(points, len(known))).round().astype(int)
    return [known[i] for i in places[::-1]]


def pareto(score: Float[np.ndarray, " m"], cost: Float[np.ndarray, " m"]) -> Bool[np.ndarray, " m"]:
    """Which points none is better than: none has as much for less, or more for as little."""
    order = np.lexsort((-score, cost))  # the cheapest first, of equal ones the best
    best = np.maximum.accumulate(np.concatenate([[-np.inf], score[order][:-1]]))
    front = np.zeros(len(score), bool)
    front[order] = score[order] > best
    return front & np.isfinite(cost)


def is_behind(trial: Trial, others: Sequence[Trial]) -> bool:
    """Whether to stop a trial: its score is below the 0.3 quantile of the others' at its cost.

    Others are those that have ended and were evaluated at that cost or later, of which there must be 8; between two
    evaluations their score is on the line.
    """
    now = trial.curve[-1]
    if now.used <= FIRST:
        return False
    curves = [
        [one for one in other.curve if math.isfinite(one.score)]
        for other in others
        if other.number != trial.number and other.state in (DONE, STOPPED) and other.cost >= now.cost
    ]
    scores = [float(np.interp(now.cost, [x.cost for x in one], [x.score for x in one])) for one in curves if one]
    return len(scores) >= LEAST and not now.score >= np.quantile(scores, QUANTILE)
