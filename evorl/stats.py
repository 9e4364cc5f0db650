"""Statistics over runs: means with t intervals, rates, and the interquartile mean with the stratified bootstrap."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MIN_RUNS = 3  # minimum number of runs for an interval


@dataclass(frozen=True)
class MeanEstimate:
    """Estimate of a mean, which is printed with its 95 % confidence interval.

    For example, f"{MeanEstimate.from_scores(scores):.1f}" gives "2.0 [0.8, 3.2]".

    Attributes:
        value: Mean.
        error: Standard error of the mean; infinite if unknown.
        degrees_of_freedom: Degrees of freedom of the standard error.
    """

    value: float
    error: float
    degrees_of_freedom: float

    @classmethod
    def from_scores(cls, scores: Any) -> "MeanEstimate":
        """Estimate the mean of independent scores; with several tasks, the mean of the means of the tasks.

        Args:
            scores: Scores, [runs], or [runs, tasks] if the runs of different tasks are independent.

        Returns:
            The estimate. Its error is infinite with fewer than three runs.
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
        """Estimate the difference between the means of two independent sets of runs (Welch 1947)."""
        variances = np.square([self.error, other.error])
        freedom = _degrees_of_freedom(variances, np.array([self.degrees_of_freedom, other.degrees_of_freedom]))
        return MeanEstimate(self.value - other.value, float(np.sqrt(variances.sum())), freedom)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval of Student's t distribution; infinite if the error is unknown.

        Args:
            confidence: Confidence level, between 0 and 1.

        Returns:
            Lower and upper bound.
        """
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
    """Return the t interval of the mean of scores (`MeanEstimate.from_scores`).

    Args:
        scores: Scores, [runs] or [runs, tasks].
        confidence: Confidence level, between 0 and 1.

    Returns:
        Lower and upper bound; infinite with fewer than three runs.
    """
    return MeanEstimate.from_scores(scores).interval(confidence)


def difference_interval(scores: Any, others: Any, confidence: float = 0.95) -> tuple[float, float]:
    """Return Welch's t interval of the difference mean(scores) - mean(others).

    If the interval does not contain 0, the means differ at this confidence level. In contrast, two separate
    intervals that overlap say little about whether the means differ.

    Args:
        scores: Scores, [runs] or [runs, tasks]; see `MeanEstimate.from_scores`.
        others: Scores of other, independent runs, in the same form.
        confidence: Confidence level, between 0 and 1.

    Returns:
        Lower and upper bound; infinite if either set has fewer than three runs.
    """
    return (MeanEstimate.from_scores(scores) - MeanEstimate.from_scores(others)).interval(confidence)


def rate_interval(outcomes: Any, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson confidence interval of the probability that an outcome is 1.

    The interval has a positive width even if all outcomes are equal.

    Args:
        outcomes: Outcomes, [episodes], each 0 or 1.
        confidence: Confidence level, between 0 and 1.

    Returns:
        Lower and upper bound.

    Source: Wilson 1927.
    """
    from scipy.special import ndtri

    outcomes = np.asarray(outcomes, np.float64)
    n, rate, z = len(outcomes), outcomes.mean(), float(ndtri(0.5 + confidence / 2))
    center = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * np.sqrt(rate * (1 - rate) / n + (z / (2 * n)) ** 2)
    return float(max(center - reach, 0)), float(min(center + reach, 1))


def iqm(scores: Any, axis: Any = None) -> Any:
    """Return the interquartile mean (IQM), the mean of the middle half of all scores.

    Args:
        scores: Scores, of any shape.
        axis: Axis to reduce, as in scipy.stats.trim_mean; None for all scores together.

    Source: Agarwal et al. 2021, arXiv:2108.13264.
    """
    from scipy import stats

    return stats.trim_mean(np.asarray(scores), 0.25, axis=axis)


def bootstrap_interval(
    scores: Any, statistic: Callable[..., Any] = iqm, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile interval of the stratified bootstrap, which resamples the runs of each task.

    It is intended for statistics over several tasks. For few runs of one task it is too narrow
    (docs/howto/statistics.md); use `mean_interval` for the mean.

    Args:
        scores: Scores, [runs, tasks], or [runs] for one task.
        statistic: Function of scores [..., runs * tasks] and axis=-1.
        confidence: Confidence level, between 0 and 1.
        resamples: Number of resamples.
        seed: Seed of the resampling.

    Returns:
        Lower and upper bound; infinite with fewer than three runs.

    Source: Agarwal et al. 2021, arXiv:2108.13264.
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
