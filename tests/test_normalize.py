import jax
import jax.numpy as jnp
import numpy as np

from evorl.normalize import RunningStatistics


def test_batches_and_merges_give_numpys_mean_and_variance():
    rng = np.random.default_rng(0)
    x = rng.normal(3, 5, (100, 4)).astype(np.float32)
    left = RunningStatistics.empty(jnp.zeros(4)).update(jnp.asarray(x[:30])).update(jnp.asarray(x[30:35]))
    right = RunningStatistics.empty(jnp.zeros(4)).update(jnp.asarray(x[35:]))
    both = left.merge(right)
    assert float(both.count) == 100
    np.testing.assert_allclose(both.mean, x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(both.sum_of_squares / both.count, x.var(0), rtol=1e-5)
    np.testing.assert_allclose(both.normalize(jnp.asarray(x)), (x - x.mean(0)) / x.std(0), rtol=1e-3, atol=1e-4)


def test_masked_rows_do_not_count():
    x = jnp.arange(6.0).reshape(6, 1)
    masked = RunningStatistics.empty(jnp.zeros(1)).update(x, jnp.arange(6) < 3)
    np.testing.assert_allclose(masked.mean, [1.0])
    np.testing.assert_allclose(masked.sum_of_squares, [2.0])  # (0-1)^2 + (1-1)^2 + (2-1)^2


def test_before_the_first_observation_it_only_clips():
    obs = jnp.array([3.0, -20.0])
    np.testing.assert_allclose(RunningStatistics.empty(obs).normalize(obs), [3.0, -10.0], rtol=1e-6)


def test_whole_numbers_stay_as_they_are():
    obs = {"choice": jnp.array([0, 3]), "real": jnp.array([1.0, 3.0])}
    statistics = RunningStatistics.empty(jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], obs))).update(obs)
    np.testing.assert_array_equal(statistics.normalize(obs)["choice"], [0, 3])
    np.testing.assert_allclose(statistics.normalize(obs)["real"], [-1, 1], rtol=1e-6)
