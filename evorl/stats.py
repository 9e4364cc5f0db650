"""Statistics over runs: means with t intervals, rates, interquartile means, profiles, probability of improvement."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MIN_RUNS = 3  # minimum number of runs for an interval
TINY = 1e-9


def compute_t_quantile(degrees_of_freedom: float, confidence: float) -> float:
    """Return how many standard errors a confidence interval of Student's t distribution reaches from its center.

    Args:
        degrees_of_freedom: Degrees of freedom, above 0.
        confidence: Confidence level, between 0 and 1.
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, 0.5 + confidence / 2))


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
            scores: Scores, [runs], or [runs, tasks] if the runs of different tasks are independent, or a list with
                an array [runs] for each task.

        Returns:
            The estimate. Its error is infinite with fewer than three runs.
        """
        tasks = split_tasks(scores)
        runs = np.array([len(task) for task in tasks])
        mean = float(np.mean([task.mean() for task in tasks])) if runs.all() else np.nan
        if runs.min() < MIN_RUNS:
            return cls(mean, np.inf, 0)
        variances = np.array([task.var(ddof=1) for task in tasks]) / runs / len(tasks) ** 2
        return cls(mean, float(np.sqrt(variances.sum())), _degrees_of_freedom(variances, runs - 1))

    def __sub__(self, other: "MeanEstimate") -> "MeanEstimate":
        """Estimate the difference between the means of two independent sets of runs (Welch 1947)."""
        variances = np.square([self.error, other.error])
        freedom = _degrees_of_freedom(variances, np.array([self.degrees_of_freedom, other.degrees_of_freedom]))
        return MeanEstimate(self.value - other.value, float(np.sqrt(variances.sum())), freedom)

    def interval(
        self, confidence: float = 0.95, quantile: Callable[[float, float], float] = compute_t_quantile
    ) -> tuple[float, float]:
        """Return the confidence interval of Student's t distribution; infinite if the error is unknown.

        Args:
            confidence: Confidence level, between 0 and 1.
            quantile: Function like `compute_t_quantile`, such as one that remembers its results.

        Returns:
            Lower and upper bound.
        """
        if np.isinf(self.error):
            return -np.inf, np.inf
        reach = quantile(self.degrees_of_freedom, confidence) * self.error
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
    outcomes = np.asarray(outcomes, np.float64)
    return _wilson_interval(float(outcomes.mean()), len(outcomes), confidence)


def _wilson_interval(rate: float, n: float, confidence: float) -> tuple[float, float]:
    from scipy.special import ndtri

    z = float(ndtri(0.5 + confidence / 2))
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
        scores: Scores, [runs, tasks], or [runs] for one task, or a list with an array [runs] for each task.
        statistic: Function of scores [..., runs * tasks] and axis=-1.
        confidence: Confidence level, between 0 and 1.
        resamples: Number of resamples.
        seed: Seed of the resampling.

    Returns:
        Lower and upper bound; infinite with fewer than three runs.

    Source: Agarwal et al. 2021, arXiv:2108.13264.
    """
    from scipy import stats

    tasks = split_tasks(scores)
    if min(map(len, tasks)) < MIN_RUNS:
        return -np.inf, np.inf
    found = stats.bootstrap(
        tasks,
        lambda *resampled, axis: statistic(np.concatenate(resampled, axis=axis), axis=axis),
        n_resamples=resamples,
        confidence_level=confidence,
        method="percentile",
        rng=seed,
    ).confidence_interval
    return float(found.low), float(found.high)


def split_tasks(scores: Any) -> tuple[np.ndarray, ...]:
    """Return the scores of each task, [runs], from scores [runs], [runs, tasks], or a list with one array per task.

    Lists in a list are the rows of [runs, tasks], and must have the same length.
    """
    if isinstance(scores, (list, tuple)) and scores:
        if all(getattr(task, "ndim", 0) == 1 for task in scores):
            return tuple(np.asarray(task, np.float64) for task in scores)
        lengths = {len(task) for task in scores if isinstance(task, (list, tuple))}
        if len(lengths) > 1:
            raise ValueError(f"lists of lengths {sorted(lengths)}: give a list with one array for each task")
    scores = np.asarray(scores, np.float64)
    return (scores,) if scores.ndim == 1 else tuple(scores.T)


def performance_profile(scores: Any, thresholds: Any) -> np.ndarray:
    """Return the fraction of runs with a score above each threshold, mean over tasks.

    Args:
        scores: Scores, [runs, tasks], or [runs] for one task, or a list with an array [runs] for each task.
        thresholds: Thresholds, [n].

    Returns:
        Fractions, [n].

    Source: Agarwal et al. 2021, arXiv:2108.13264, section 4.2.
    """
    thresholds = np.asarray(thresholds, np.float64)
    return np.mean([(task[:, None] > thresholds).mean(0) for task in split_tasks(scores)], 0)


def profile_interval(scores: Any, thresholds: Any, confidence: float = 0.95) -> np.ndarray:
    """Return Wilson's interval of each fraction of a performance profile.

    With several tasks, it treats all runs as if they had the mean fraction, which makes the interval too wide rather
    than too narrow.

    Args:
        scores: Scores, as in `performance_profile`.
        thresholds: Thresholds, [n].
        confidence: Confidence level of each threshold, between 0 and 1.

    Returns:
        Lower and upper bounds, [n, 2].
    """
    tasks = split_tasks(scores)
    runs = len(tasks) ** 2 / sum(1 / len(task) for task in tasks)
    rates = performance_profile(scores, thresholds)
    return np.array([_wilson_interval(float(rate), runs, confidence) for rate in rates]).reshape(-1, 2)


def probability_of_improvement(scores: Any, others: Any) -> float:
    """Return the probability that a random run has a higher score than a random run of another algorithm.

    Ties count one half. With several tasks, it is the mean over tasks.

    Args:
        scores: Scores, [runs, tasks], or [runs] for one task, or a list with an array [runs] for each task.
        others: Scores of the other algorithm in the same tasks.

    Returns:
        The probability, from 0 to 1.

    Source: Agarwal et al. 2021, arXiv:2108.13264, section 4.3 (the Mann-Whitney U statistic over the number of pairs).
    """
    pairs = zip(split_tasks(scores), split_tasks(others), strict=True)
    return float(np.mean([(np.sign(x[:, None] - y) + 1).mean() / 2 for x, y in pairs]))


def improvement_interval(scores: Any, others: Any, confidence: float = 0.95) -> tuple[float, float]:
    """Return a score interval of the probability of improvement.

    It has a positive width even if all runs of one algorithm are above all of the other, where the bootstrap has none.

    Args:
        scores: Scores, as in `probability_of_improvement`.
        others: Scores of the other algorithm.
        confidence: Confidence level, between 0 and 1.

    Returns:
        Lower and upper bound.

    Source: Newcombe 2006, doi:10.1002/sim.2324, method 5; with several tasks, its variances are added.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtri

    sizes = [(len(x), len(y)) for x, y in zip(split_tasks(scores), split_tasks(others), strict=True)]
    found, z = probability_of_improvement(scores, others), float(ndtri(0.5 + confidence / 2))

    def excess(p: float) -> float:
        variances = [
            p * (1 - p) * (1 + ((m + n) / 2 - 1) * ((1 - p) / (2 - p) + p / (1 + p))) / (m * n) for m, n in sizes
        ]
        return (found - p) ** 2 - z**2 * sum(variances) / len(sizes) ** 2

    low: Any = 0.0
    high: Any = 1.0
    inside = min(max(found, TINY), 1 - TINY)  # the variance is 0 at 0 and 1
    if found > 0:
        low = brentq(excess, 0.0, inside)
    if found < 1:
        high = brentq(excess, inside, 1.0)
    return float(low), float(high)
