from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import BC, SAC, TD3, Team
from evorl.envs.mpe import MPE, SimpleSpread
from evorl.envs.sanity import probe
from evorl.errors import OptionError
from evorl.workflows import OffPolicy
from evorl.workflows.base import step_or_evaluate
from tests.conftest import leaves_equal
from tests.counting import Counting


def off_policy(env, **options):
    agent = TD3(hidden=(32, 32))
    defaults = {"num_envs": 8, "num_steps": 8, "num_updates": 64, "batch_size": 64, "capacity": 4096}
    return OffPolicy(env, agent, **defaults | {"random_steps": 512, "eval_episodes": 16} | options)


@pytest.mark.program
def test_the_first_iteration_fills_the_replay_at_random_and_episodes_go_on(key):
    env = Counting()
    workflow = off_policy(env, random_steps=100, num_steps=3)
    state = jax.jit(workflow.init)(key)
    step = jax.jit(workflow.step)
    state, metrics = step(state, key)
    assert int(metrics["env_steps"]) == 8 * 13  # 100 of 8 environments, rounded up
    assert int(state.replay.size) == 8 * 13
    rows = state.replay.row.unpack(state.replay.tables)
    acted = np.asarray(rows.action[: 8 * 13, 0])
    assert abs(acted.mean()) < 0.3  # uniform in [-1, 1]
    assert acted.std() == pytest.approx(1 / np.sqrt(3), rel=0.2)
    before = np.asarray(state.envs.obs)
    state, metrics = step(state, jax.random.fold_in(key, 1))
    assert int(metrics["env_steps"]) == 8 * 3
    rows = state.replay.row.unpack(state.replay.tables)
    np.testing.assert_array_equal(rows.obs[8 * 13 : 8 * 14], before)  # the first new row is where each one stood


@pytest.mark.program
def test_the_random_steps_are_enough_for_a_transition(key):
    workflow = off_policy(probe.DelayedReward(), random_steps=1, num_steps=1, num_updates=2, n_step=2)
    state, metrics = jax.jit(workflow.step)(workflow.init(key), key)
    assert (int(state.replay.size), int(metrics["env_steps"])) == (8, 16)


@pytest.mark.program
def test_returns_are_of_whole_episodes_across_iterations(key):
    env = Counting()
    workflow = off_policy(env, random_steps=0, num_steps=2, num_updates=2)
    state = jax.jit(workflow.init)(key)
    state, metrics = jax.jit(lambda s: jax.lax.scan(workflow.step, s, jax.random.split(key, 200)))(state)
    episodes = np.asarray(metrics["episodes"], float)
    # lengths are uniform on 1..7, the return is the length; long and short ones end as often: mean 4
    mean = (metrics["return"] * episodes).sum() / episodes.sum()
    assert float(mean) == pytest.approx(4.0, abs=0.2)


@pytest.mark.program
def test_a_step_keeps_one_copy_of_the_replay(key):
    workflow = off_policy(probe.ObsActionReward(), capacity=500_000)
    state = jax.eval_shape(workflow.init, key)
    compiled = (
        jax.jit(partial(step_or_evaluate, workflow), donate_argnums=0).lower(state, key, jnp.bool_(False)).compile()
    )
    memory, replay = compiled.memory_analysis(), tree.nbytes(state.replay)
    assert memory.alias_size_in_bytes >= replay
    assert memory.temp_size_in_bytes < 0.1 * replay


@pytest.mark.parametrize(
    "options",
    [{"num_envs": 0}, {"num_updates": 3}, {"batch_size": 5000}, {"random_steps": 5000}, {"random_steps": -1}],
)
def test_impossible_sizes_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options)).replace("batch_size", "capacity")):
        off_policy(probe.ConstantReward(), **options)


@pytest.mark.program
def test_nothing_learns_from_an_empty_replay(key):
    workflow = off_policy(probe.DelayedReward(), random_steps=0, num_steps=1, num_updates=2, n_step=2)
    state = jax.jit(workflow.init)(key)
    step = jax.jit(workflow.step)
    after, metrics = step(state, key)
    assert (int(after.replay.size), int(metrics["gradient_steps"])) == (0, 0)  # both steps of a transition are to come
    assert leaves_equal(after.agent, state.agent)
    after, metrics = step(after, key)
    assert (int(after.replay.size), int(metrics["gradient_steps"])) == (8, 2)


@pytest.mark.parametrize("left", [2, 3, 5])
def test_a_chunk_stores_no_more_steps_than_are_left(left):
    env = Counting()
    agent = TD3(hidden=(4,))
    workflow = OffPolicy(
        env, agent, num_envs=2, num_steps=8, capacity=32, n_step=4, scan_length=3, batch_size=4, random_steps=0
    )
    state = jax.jit(workflow.init)(jax.random.key(0))
    given = (state.replay, state.window, jnp.int32(left), None), state.window.rows, jnp.ones((3, 2), bool)
    _, window, after, _ = jax.jit(lambda: workflow.make_store_function(jnp.bool_(True))(*given))()
    assert int(after) == max(left - 3, 0)
    assert int(window.num_filled) == min(left, 3)


@pytest.mark.program
def test_observations_are_normalized_by_all_that_were_collected(key):
    env = probe.ObsActionReward()
    workflow = off_policy(env, random_steps=64, num_updates=2, num_steps=2, normalize_observations=True)
    step = jax.jit(workflow.step)
    state, _ = step(jax.jit(workflow.init)(key), key)
    state, _ = step(state, jax.random.fold_in(key, 1))
    rows = state.replay.row.unpack(state.replay.tables)
    stored = np.asarray(rows.obs[: int(state.replay.size)])
    statistics = state.obs_statistics
    assert int(statistics.count) == len(stored) == 64 + 16
    np.testing.assert_allclose(statistics.mean, stored.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(statistics.sum_of_squares / statistics.count, stored.var(0), rtol=1e-5)
    seen = jnp.asarray((stored[0] - stored.mean(0)) / stored.std(0))
    policy = workflow.policy(state)
    wanted = workflow.agent.mode(state.agent.actor.params, seen, None, key)[0]
    np.testing.assert_allclose(policy(jnp.asarray(stored[0]), None, key)[0], wanted, rtol=1e-4, atol=1e-6)
    evaluated = step_or_evaluate(workflow, state, key, True)[0]
    assert leaves_equal(evaluated.obs_statistics, statistics)


@pytest.mark.program
def test_learning_sees_normalized_observations(key):
    """A critic of replayed observations x is that of a replay buffer of (x - mean) / std without normalization."""
    env = probe.ObsActionReward()
    plain = off_policy(env, num_updates=2, batch_size=4, random_steps=0)
    workflow = off_policy(env, num_updates=2, batch_size=4, random_steps=0, normalize_observations=True)
    state, other = workflow.init(key), plain.init(key)
    row = jax.tree.map(lambda x: jnp.zeros((1, 1, *x.shape[1:]), x.dtype), state.replay.row.unpack(state.replay.tables))
    obs = jnp.float32([[[3.0]]])
    ones = jnp.ones((1, 1), bool)
    state = with_transition(state, row, obs, obs + 2, ones)
    statistics = state.obs_statistics.update(jnp.float32([[1.0], [5.0]]))  # mean 3, std 2
    state = state.replace(obs_statistics=statistics)
    other = with_transition(other, row, jnp.zeros_like(obs), jnp.ones_like(obs), ones)
    one, _ = jax.jit(workflow.learn)(state, key, jnp.int32(1))
    two, _ = jax.jit(plain.learn)(other, key, jnp.int32(1))
    for a, b in zip(jax.tree.leaves(one.agent), jax.tree.leaves(two.agent), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def with_transition(state, row, obs, next_obs, mask):
    """Return a state whose replay buffer holds one transition."""
    row = row.replace(obs=obs, next_obs=next_obs, reward=jnp.ones_like(row.reward))
    return state.replace(replay=state.replay.add(row, mask))


def test_n_step_returns_need_one_discount():
    with pytest.raises(OptionError, match="n_step=2: must be 1, since BC has no single discount"):
        OffPolicy(probe.DelayedReward(), BC(), n_step=2)


def test_normalization_without_rollouts_is_refused():
    with pytest.raises(OptionError, match="normalize_observations=true: needs rollouts"):
        off_policy(probe.ObsActionReward(), num_steps=0, random_steps=0, normalize_observations=True)


def test_only_the_actor_of_td3_is_delayed_by_default():
    """One gradient step of the actor for two of the critics (arXiv:1802.09477, table 3); SAC and BC have no delay."""
    assert [OffPolicy(Counting(), agent).critic_steps for agent in (TD3(), SAC(), BC())] == [2, 1, 1]
    assert OffPolicy(Counting(), TD3(), policy_delay=1).critic_steps == 1
    game = MPE(SimpleSpread(), continuous=True)
    assert [OffPolicy(game, Team(agent)).critic_steps for agent in (TD3(), SAC())] == [2, 1]
