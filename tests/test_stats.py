import numpy as np
import pytest

from evorl import stats


def test_the_interquartile_mean_drops_both_quarters():
    assert stats.iqm([100, 2, 3, 4, 5, 6, 7, -100]) == (3 + 4 + 5 + 6) / 4
    scores = np.random.default_rng(0).normal(size=(8, 3))
    ordered = np.sort(scores.ravel())
    assert stats.iqm(scores) == pytest.approx(ordered[6:18].mean())


def test_intervals_are_those_of_a_bootstrap_written_out():
    scores = np.random.default_rng(1).normal(3, 1, 40)
    draws = np.random.default_rng(2)
    means = [draws.choice(scores, 40).mean() for _ in range(4000)]
    np.testing.assert_allclose(stats.interval(scores), np.percentile(means, [2.5, 97.5]), atol=0.03)


def test_the_bootstrap_is_stratified_by_task():
    """Runs are drawn within their task: tasks that lie far apart do not widen the interval."""
    rng = np.random.default_rng(3)
    scores = np.stack([rng.normal(0, 1, 20), rng.normal(1000, 1, 20)], axis=1)
    draws = np.random.default_rng(4)
    iqms = []
    for _ in range(2000):
        both = np.concatenate([draws.choice(scores[:, task], 20) for task in range(2)])
        iqms.append(np.sort(both)[10:30].mean())
    low, high = stats.interval(scores, stats.iqm)
    np.testing.assert_allclose([low, high], np.percentile(iqms, [2.5, 97.5]), atol=0.1)
    assert high - low < 2


def test_of_one_run_nothing_is_known():
    assert stats.interval([5.0]) == (-np.inf, np.inf)
