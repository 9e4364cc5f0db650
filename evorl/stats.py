"""Statistics over runs: the interquartile mean, and bootstrap intervals (Agarwal et al. 2021, arXiv:2108.13264)."""

from collections.abc import Callable
from typing import Any

import numpy as np


def iqm(scores: Any, axis: Any = None) -> Any:
    """The mean of what is left when the highest and the lowest quarter of all scores are dropped."""
    from scipy import stats

    return stats.trim_mean(np.asarray(scores), 0.25, axis=axis)


def interval(
    scores: Any, statistic: Callable[..., Any] = np.mean, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of a statistic of scores [runs], or stratified by task of [runs, tasks].

    statistic takes scores [..., runs * tasks] and axis=-1. Of one run nothing is known: the interval is infinite.
    """
    from scipy import stats

    scores = np.asarray(scores, np.float64)
    tasks = scores[:, None] if scores.ndim == 1 else scores
    if tasks.shape[0] == 1:
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
