"""Returns against loops in NumPy that follow the definitions term by term, under random ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import returns, tree
from evorl.n_step import NStepWindow, to_single_step
from evorl.types import Transition

STEPS = 23


@pytest.fixture(params=range(4))
def trajectory(request):
    rng = np.random.default_rng(request.param)
    terminated, truncated = rng.random(STEPS) < 0.15, rng.random(STEPS) < 0.15
    reward, value, next_value, log_ratio = rng.normal(size=(4, STEPS)).astype(np.float32)
    following = ~(terminated | truncated)[:-1]
    next_value[:-1][following] = value[1:][following]
    return reward, value, next_value, terminated, terminated | truncated, np.exp(log_ratio)


def test_gae_is_the_weighted_sum_of_errors_up_to_the_end(trajectory):
    reward, value, next_value, terminated, ended, _ = trajectory
    found = returns.gae(*map(jnp.asarray, trajectory[:5]), 0.9, 0.7)
    for t in range(STEPS):
        total, weight = 0.0, 1.0
        for k in range(t, STEPS):
            total += weight * (reward[k] + 0.9 * (not terminated[k]) * next_value[k] - value[k])
            weight *= 0.9 * 0.7
            if ended[k]:
                break
        np.testing.assert_allclose(found[t], total, rtol=1e-5, atol=1e-5)


def n_step(reward, next_value, terminated, ended, t, n, discount):
    """The n-step return from t, cut at an end or at the end of the trajectory."""
    total, weight = 0.0, 1.0
    for k in range(t, min(t + n, STEPS)):
        total += weight * reward[k]
        weight *= discount
        if ended[k] or k == min(t + n, STEPS) - 1:
            return total + weight * (not terminated[k]) * next_value[k]
    return total


def test_gae_and_the_value_are_the_weighted_mean_of_n_step_returns(trajectory):
    reward, value, next_value, terminated, ended, _ = trajectory
    found = value + returns.gae(*map(jnp.asarray, trajectory[:5]), 0.9, 0.7)
    for t in range(STEPS):
        last = next((k for k in range(t, STEPS) if ended[k]), STEPS - 1)
        horizon = last - t + 1
        each = [n_step(reward, next_value, terminated, ended, t, n, 0.9) for n in range(1, horizon + 1)]
        weights = [0.3 * 0.7 ** (n - 1) for n in range(1, horizon)] + [0.7 ** (horizon - 1)]
        np.testing.assert_allclose(found[t], np.dot(weights, each), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("decay", "max_rho", "max_c"), [(1.0, 1.0, 1.0), (0.8, 1.3, 0.6)])
def test_vtrace_is_the_sum_of_its_definition(trajectory, decay, max_rho, max_c):
    reward, value, next_value, terminated, ended, ratio = trajectory
    target, advantage = returns.vtrace(*map(jnp.asarray, trajectory), 0.9, decay, max_rho, max_c)
    rho, c = np.minimum(ratio, max_rho), decay * np.minimum(ratio, max_c)
    expected = np.zeros(STEPS)
    for s in range(STEPS):
        total, weight = value[s], 1.0
        for t in range(s, STEPS):
            total += weight * rho[t] * (reward[t] + 0.9 * (not terminated[t]) * next_value[t] - value[t])
            weight *= 0.9 * c[t]
            if ended[t]:
                break
        expected[s] = total
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)
    for s in range(STEPS):
        after = next_value[s] if ended[s] or s == STEPS - 1 else expected[s + 1]
        wanted = rho[s] * (reward[s] + 0.9 * (not terminated[s]) * after - value[s])
        np.testing.assert_allclose(advantage[s], wanted, rtol=1e-4, atol=1e-5)


def test_vtrace_on_policy_is_the_n_step_return(trajectory):
    """Remark 1 of the paper."""
    reward, _, next_value, terminated, ended, ratio = trajectory
    target, _ = returns.vtrace(*map(jnp.asarray, trajectory[:5]), jnp.ones_like(ratio), 0.9, 1.0, 1.0, 1.0)
    expected = [n_step(reward, next_value, terminated, ended, t, STEPS, 0.9) for t in range(STEPS)]
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.program
def test_windows_hold_n_step_returns_across_any_chunks(trajectory):
    reward, _, next_value, terminated, ended, _ = trajectory
    n, num_envs = 4, 2
    column = lambda x: jnp.stack([jnp.asarray(x), jnp.roll(jnp.asarray(x), 5)], 1)  # noqa: E731
    steps = jnp.arange(STEPS, dtype=jnp.float32)
    data = Transition(*map(column, (steps, steps, reward, steps + 1, terminated, ended & ~terminated)), extras={})
    window = NStepWindow.empty(n - 1, num_envs, jax.tree.map(lambda x: x[0, 0], data))
    stored = []
    at = 0
    for chunk, count in ((5, 5), (6, 3), (6, 6), (5, 2), (9, 7)):  # of a chunk only the first steps were taken
        part = jax.tree.map(lambda x, at=at, chunk=chunk: x[jnp.arange(at, at + chunk) % STEPS], data)
        window, longer, there = window.push(part, jnp.int32(count))
        stored += [jax.tree.map(lambda x, i=i: x[i], longer) for i in np.flatnonzero(there)]
        at += count
    assert at == STEPS
    assert len(stored) == STEPS - (n - 1)

    rolled = [np.roll(x, 5) for x in (reward, next_value, terminated, ended)]
    for t, row in enumerate(stored):
        batch = to_single_step(row, 0.9)
        for index, (r, v, over, end) in enumerate(([reward, next_value, terminated, ended], rolled)):
            assert row.obs[index] == (t if index == 0 else (t - 5) % STEPS)
            successor = int(batch.next_obs[index]) - 1
            bootstrap = v[successor] if index == 0 else np.roll(v, -5)[successor]
            found = batch.reward[index] + batch.discount[index] * (not batch.terminated[index]) * bootstrap
            np.testing.assert_allclose(found, n_step(r, v, over, end, t, n, 0.9), rtol=1e-5, atol=1e-5)


def test_a_window_of_envs_that_are_not_in_step_keeps_the_last_rows_of_each():
    zero = jnp.zeros(2)
    rows = [
        Transition(x, zero, zero, x + 1, zero > 0, zero > 0, extras={})
        for x in jnp.array([[10, 20.0]]) + jnp.arange(3)[:, None]
    ]
    window = NStepWindow.empty(2, 2, tree.index(rows[0], 0), per_env=True)
    window, _, there = window.push(tree.stack(rows), jnp.array([3, 1]))
    np.testing.assert_array_equal(window.num_filled, [2, 1])
    np.testing.assert_array_equal(window.rows.obs, [[11, 0], [12, 20]])
    np.testing.assert_array_equal(there, [[False, False], [False, False], [True, False]])
