from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree
from evorl.normalize import RunningStatistics, get_member_shapes, mask_members
from evorl.types import Transition


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


def test_after_many_updates_the_variance_stays_right_and_the_count_stops():
    """In float32, a count of 2^24 no longer grows by one, but a sum of squares of 0.3 2^24 does."""
    values = jnp.asarray(np.random.default_rng(0).normal(5, np.sqrt(0.3), (2**12, 1, 1)), jnp.float32)
    late = RunningStatistics(jnp.float32(2**20), jnp.float32([5]), jnp.float32([0.3 * 2**20]))
    run = jax.jit(lambda statistics: jax.lax.fori_loop(0, 2**17, lambda i, x: x.update(values[i % 2**12]), statistics))
    found = run(late)
    assert float(found.count) == 2**20
    np.testing.assert_allclose(found.sum_of_squares / found.count, [0.3], rtol=0.02)
    before = late.replace(count=jnp.float32(2**24), sum_of_squares=jnp.float32([0.3 * 2**24])).update(values[0])
    np.testing.assert_allclose([before.count, before.sum_of_squares[0]], [2**20, 0.3 * 2**20], rtol=1e-5)


def test_the_members_of_a_group_share_statistics_without_those_that_have_left():
    rng = np.random.default_rng(0)
    x, gone = rng.normal(2, 3, (7, 3, 2)), rng.random((7, 3)) < 0.5
    state = rng.normal(-1, 2, (7, 4))
    obs = {"a": jnp.asarray(x), "state": jnp.asarray(state)}
    played = Transition(obs, None, {"a": jnp.zeros((7, 3))}, None, None, None)
    shapes = get_member_shapes(tree.index(played, 0), tree.index(played.obs, 0))
    statistics = RunningStatistics.empty(shapes)
    left = replace(played, members_done={"a": jnp.asarray(gone)})
    found = statistics.update(obs, mask_members(left, obs))
    there = x[~gone]
    assert float(found.count["a"]) == len(there)
    np.testing.assert_allclose(found.mean["a"], there.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.sum_of_squares["a"] / len(there), there.var(0), rtol=1e-5)
    assert float(found.count["state"]) == 7
    np.testing.assert_allclose(found.mean["state"], state.mean(0), rtol=1e-5)
    rewards = RunningStatistics.empty(get_member_shapes(tree.index(left, 0), {"a": jnp.zeros(3)}))
    assert float(rewards.update(left.reward, mask_members(left, left.reward)).count["a"]) == len(there)
    some = statistics.update(obs, mask_members(left, obs, jnp.arange(7) < 4))
    np.testing.assert_allclose(some.mean["a"], x[:4][~gone[:4]].mean(0), rtol=1e-5)
    np.testing.assert_allclose(some.mean["state"], state[:4].mean(0), rtol=1e-5)
    whole = statistics.update(played.obs, mask_members(played, obs, jnp.arange(7) < 4))
    np.testing.assert_allclose(whole.mean["a"], x[:4].reshape(-1, 2).mean(0), rtol=1e-5)
    expected = (x - x[:4].reshape(-1, 2).mean(0)) / x[:4].reshape(-1, 2).std(0)
    np.testing.assert_allclose(whole.normalize(played.obs)["a"], expected, rtol=1e-4, atol=1e-5)
