"""Statistics over runs: means with t intervals, rates, and the interquartile mean with the stratified bootstrap."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MIN_RUNS = 3  # runs of which there is an interval


@dataclass(frozen=True)
class MeanEstimate:
    """An estimate of a mean, which prints with its 95 % interval.

    f"{MeanEstimate.from_scores(scores):.1f}" is "2.0 [0.8, 3.2]".

    Attributes:
        value: the mean.
        error: its standard error, infinite where it is not known.
        freedom: the degrees of freedom of the error.
    """

    value: float
    error: float
    degrees_of_freedom: float

    @classmethod
    def from_scores(cls, scores: Any) -> "MeanEstimate":
        """Estimate the mean of independent scores; over several tasks, the mean of the tasks' means.

        Args:
            scores: [runs], or [runs, tasks] where the runs of a task are independent of those of the others.

        Returns:
            The estimate. Its error is infinite below three runs.
        """
        scores = np.asarray(scores, np.float64)
        runs, tasks = scores.shape if scores.ndim > 1 else (len(scores), 1)
        if runs < MIN_RUNS:
            return cls(float(scores.mean()) if scores.size else np.nan, np.inf, 0)
        variances = scores.var(0, ddof=1).reshape(tasks) / runs / tasks**2
        return cls(
            float(scores.mean()),
            float(np.sqrt(variances.sum())),
            _degrees_of_freedom(variances, np.full(tasks, runs - 1)),
        )

    def __sub__(self, other: "MeanEstimate") -> "MeanEstimate":
        """Estimate the difference from the mean of other, independent runs (Welch 1947)."""
        variances = np.square([self.error, other.error])
        freedom = _degrees_of_freedom(variances, np.array([self.degrees_of_freedom, other.degrees_of_freedom]))
        return MeanEstimate(self.value - other.value, float(np.sqrt(variances.sum())), freedom)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the interval of Student's t, which is infinite where the error is not known."""
        from scipy.special import stdtrit

        if np.isinf(self.error):
            return -np.inf, np.inf
        reach = float(stdtrit(self.degrees_of_freedom, 0.5 + confidence / 2)) * self.error
        return self.value - reach, self.value + reach

    def __format__(self, spec: str) -> str:
        low, high = self.interval()
        return f"{self.value:{spec}}" + (f" [{low:{spec}}, {high:{spec}}]" if np.isfinite(low) else "")


def _degrees_of_freedom(variances: np.ndarray, freedoms: np.ndarray) -> float:
    """Return the degrees of freedom of a sum of variances (Satterthwaite 1946)."""
    total = variances.sum()
    if np.isinf(total):
        return 0
    shares = variances / total if total > 0 else freedoms / freedoms.sum()
    return float(1 / (np.square(shares) / freedoms).sum())


def mean_interval(scores: Any, confidence: float = 0.95) -> tuple[float, float]:
    """Return the t interval of the mean of scores [runs] or [runs, tasks]; see MeanEstimate.from_scores.

    Below three runs it is infinite.
    """
    return MeanEstimate.from_scores(scores).interval(confidence)


def difference_interval(scores: Any, others: Any, confidence: float = 0.95) -> tuple[float, float]:
    """Return Welch's t interval of the mean of scores minus that of others.

    The means differ, at this confidence, where it does not hold 0. Two intervals of one mean each that overlap say
    little about that.

    Args:
        scores: [runs] or [runs, tasks]; see MeanEstimate.from_scores.
        others: of other, independent runs.
        confidence: of the interval, between 0 and 1.

    Returns:
        low, high: infinite where either has less than three runs.
    """
    return (MeanEstimate.from_scores(scores) - MeanEstimate.from_scores(others)).interval(confidence)


def rate_interval(outcomes: Any, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the probability that an outcome is 1 (Wilson 1927).

    It is not empty where all outcomes are alike.

    Args:
        outcomes: [episodes], each 0 or 1.
        confidence: of the interval, between 0 and 1.
    """
    from scipy.special import ndtri

    outcomes = np.asarray(outcomes, np.float64)
    n, rate, z = len(outcomes), outcomes.mean(), float(ndtri(0.5 + confidence / 2))
    center = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * np.sqrt(rate * (1 - rate) / n + (z / (2 * n)) ** 2)
    return float(max(center - reach, 0)), float(min(center + reach, 1))


def iqm(scores: Any, axis: Any = None) -> Any:
    """Return the interquartile mean: that of the middle half of all scores (Agarwal et al. 2021, arXiv:2108.13264)."""
    from scipy import stats

    return stats.trim_mean(np.asarray(scores), 0.25, axis=axis)


def bootstrap_interval(
    scores: Any, statistic: Callable[..., Any] = iqm, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile interval of the stratified bootstrap: runs are drawn anew within each task.

    It is meant for statistics over several tasks (Agarwal et al. 2021, arXiv:2108.13264). Of few runs of one task it
    is too narrow (docs/statistics.md); `mean_interval` is right for the mean.

    Args:
        scores: [runs, tasks], or [runs] of one task.
        statistic: takes scores [..., runs * tasks] and axis=-1.
        confidence: of the interval, between 0 and 1.
        resamples: number of draws.
        seed: of the draws.

    Returns:
        low, high: infinite below three runs.
    """
    from scipy import stats

    scores = np.asarray(scores, np.float64)
    tasks = scores[:, None] if scores.ndim == 1 else scores
    if len(tasks) < MIN_RUNS:
        return -np.inf, np.inf
    found = stats.bootstrap(
        tuple(tasks.T),
        lambda *resampled, axis: statistic(np.concatenate(resampled, axis=axis), axis=axis),
        n_resamples=resamples,
        confidence_level=confidence,
        method="percentile",
        rng=seed,
    ).confidence_interval
    return float(found.low), float(found.high)
