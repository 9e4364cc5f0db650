import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats as scipy_stats

from evorl import stats

RUNS = (3, 4, 8, 16, 32)
DRAWS = 4000  # a coverage of 95 % is then known to 0.35 %


def test_the_interquartile_mean_drops_both_quarters():
    assert stats.iqm([100, 2, 3, 4, 5, 6, 7, -100]) == (3 + 4 + 5 + 6) / 4
    scores = np.random.default_rng(0).normal(size=(8, 3))
    ordered = np.sort(scores.ravel())
    assert stats.iqm(scores) == pytest.approx(ordered[6:18].mean())


@pytest.mark.parametrize("runs", [3, 8, 500])
def test_the_interval_of_a_mean_is_that_of_student(runs):
    scores = np.random.default_rng(1).normal(3, 1, runs)
    theirs = scipy_stats.ttest_1samp(scores, 0).confidence_interval(0.9)
    np.testing.assert_allclose(stats.mean_interval(scores, 0.9), theirs)
    assert stats.mean_interval(scores.tolist(), 0.9) == stats.mean_interval(scores, 0.9)


@pytest.mark.parametrize("others", [3, 20])
def test_the_interval_of_a_difference_is_that_of_welch(others):
    rng = np.random.default_rng(2)
    a, b = rng.normal(3, 1, 5), rng.normal(2, 4, others)
    theirs = scipy_stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose(stats.difference_interval(a, b), theirs)


def test_the_mean_of_two_tasks_is_half_of_the_sum_of_welch():
    """m1 + m2 = m1 - (-m2), of which another library knows the interval."""
    scores = np.random.default_rng(3).normal([3, 2000], [1, 5], (6, 2))
    theirs = scipy_stats.ttest_ind(scores[:, 0], -scores[:, 1], equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose(stats.mean_interval(scores), np.divide(theirs, 2))


@pytest.mark.parametrize("runs", RUNS)
def test_intervals_of_normal_scores_cover_the_mean(runs):
    draws = np.random.default_rng(runs).normal(3, 2, (DRAWS, runs))
    low, high = np.transpose([stats.mean_interval(scores) for scores in draws])
    assert np.mean((low <= 3) & (high >= 3)) > 0.93


@pytest.mark.parametrize(("runs", "spread"), [*((runs, 1) for runs in RUNS), (3, 5), (8, 5)])
def test_equal_normals_are_seldom_told_apart(runs, spread):
    rng = np.random.default_rng(runs)
    pairs = zip(rng.normal(0, 1, (DRAWS, runs)), rng.normal(0, spread, (DRAWS, runs)), strict=True)
    low, high = np.transpose([stats.difference_interval(a, b) for a, b in pairs])
    assert np.mean((low > 0) | (high < 0)) < 0.06


def test_the_bootstrap_is_stratified_by_task():
    """Runs are drawn within their task: tasks that lie far apart do not widen the interval."""
    rng = np.random.default_rng(3)
    scores = np.stack([rng.normal(0, 1, 20), rng.normal(1000, 1, 20)], axis=1)
    draws = np.random.default_rng(4)
    iqms = []
    for _ in range(2000):
        both = np.concatenate([draws.choice(scores[:, task], 20) for task in range(2)])
        iqms.append(np.sort(both)[10:30].mean())
    low, high = stats.bootstrap_interval(scores)
    np.testing.assert_allclose([low, high], np.percentile(iqms, [2.5, 97.5]), atol=0.1)
    assert high - low < 2


@pytest.mark.parametrize("successes", [0, 1, 40, 64])
def test_the_interval_of_a_rate_is_that_of_wilson(successes):
    outcomes = np.arange(64) < successes
    theirs = scipy_stats.binomtest(successes, 64).proportion_ci(0.95, "wilson")
    np.testing.assert_allclose(stats.rate_interval(outcomes), theirs, atol=1e-12)


@pytest.mark.parametrize("scores", [[], [5.0], [5.0, 6.0], [[1.0, 2, 3], [4, 5, 6]]])
def test_below_three_runs_there_is_no_interval(scores):
    assert stats.mean_interval(scores) == (-np.inf, np.inf)
    assert stats.bootstrap_interval(scores) == (-np.inf, np.inf)
    for pair in ((scores, [1.0, 2, 3]), ([1.0, 2, 3], scores)):
        assert stats.difference_interval(*pair) == (-np.inf, np.inf)


def test_a_mean_prints_with_its_interval_where_there_is_one():
    assert f"{stats.MeanEstimate.from_scores([1.0, 2, 3]):.1f}" == "2.0 [-0.5, 4.5]"  # t = 4.303, error = 0.577
    assert f"{stats.MeanEstimate.from_scores([1.0, 2]):.1f}" == "1.5"


def test_scores_that_are_alike_or_lost():
    assert stats.mean_interval([5.0] * 3) == (5, 5)
    assert stats.difference_interval([5.0] * 3, [4.0] * 4) == (1, 1)
    assert stats.difference_interval([5.0] * 3, [4.0, 5, 6]) == pytest.approx(stats.mean_interval([-1.0, 0, 1]))
    low, high = stats.difference_interval([np.nan, 1, 2], [0.0, 0, 0])
    assert not low > 0
    assert not high < 0


def test_lists_of_unequal_lengths_are_refused_and_arrays_are_tasks():
    with pytest.raises(ValueError, match=r"lists of lengths \[1, 2\]: give a list with one array for each task"):
        stats.mean_interval([[1.0, 2.0], [3.0]])
    assert [x.tolist() for x in stats.split_tasks([np.array([1.0, 2.0]), jnp.array([3.0])])] == [[1, 2], [3]]
    assert [x.tolist() for x in stats.split_tasks([[1.0, 2.0], [3.0, 4.0]])] == [[1, 3], [2, 4]]
