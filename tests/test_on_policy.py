from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import A2C, PPO
from evorl.envs.sanity import probe
from evorl.envs.wrappers import RewardTransform
from evorl.errors import OptionError
from evorl.workflows import OnPolicy
from tests.conftest import leaves_equal
from tests.counting import Counting
from tests.tiers import program_fixture


def on_policy(env, objective=None, **options):
    agent = replace(objective or PPO(), hidden=(8,))
    defaults = {"num_envs": 4, "num_steps": 6, "num_epochs": 2, "batch_size": 8, "eval_episodes": 16}
    return OnPolicy(env, agent, **defaults | options)


@program_fixture(scope="module")
def counted():
    """A workflow on Counting, its states after each of five iterations from the initial one on, and their metrics."""
    workflow, key = on_policy(Counting(), PPO(learning_rate=1e-2), staleness=2), jax.random.key(3)
    step, collect = jax.jit(workflow.step), jax.jit(workflow.collect)
    states, rollouts, metrics = [jax.jit(workflow.init)(key)], [], []
    for i in range(5):
        key_step = jax.random.fold_in(key, i)
        rollouts.append(collect(states[-1], jax.random.split(key_step, 3)[1])[1])
        state, found = step(states[-1], key_step)
        states.append(state)
        metrics.append(found)
    return workflow, states, rollouts, metrics


def test_rollouts_go_on_where_the_last_one_stopped(counted):
    _, states, rollouts, metrics = counted
    for before, rollout, after, found in zip(states, rollouts, states[1:], metrics, strict=False):
        t = rollout
        assert t.reward.shape == (6, 4)
        assert int(found["env_steps"]) == 24
        if int(before.iteration):
            np.testing.assert_array_equal(t.obs[0], before.envs.obs)
        going_on = ~np.asarray(t.is_done[:-1])
        np.testing.assert_array_equal(np.asarray(t.obs[1:])[going_on], np.asarray(t.next_obs[:-1])[going_on])
        np.testing.assert_array_equal(np.asarray(t.obs[1:])[~going_on][:, 0], 0)  # a start, not what came before it
        stays = ~np.asarray(t.is_done[-1])
        np.testing.assert_array_equal(np.asarray(after.envs.obs)[stays], np.asarray(t.next_obs[-1])[stays])


def test_returns_are_of_whole_episodes_across_iterations(counted):
    workflow, states, _, _ = counted
    run = jax.jit(lambda s: jax.lax.scan(workflow.step, s, jax.random.split(jax.random.key(1), 150)))
    _, metrics = run(states[-1])
    episodes = np.asarray(metrics["episodes"], float)
    # lengths are uniform on 1..7, the return is the length; long and short ones end as often: mean 4
    assert (metrics["return"] * episodes).sum() / episodes.sum() == pytest.approx(4.0, abs=0.25)


def test_observations_are_normalized_by_all_those_before_the_iteration(counted):
    workflow, states, rollouts, _ = counted
    seen = np.concatenate([np.asarray(r.obs).reshape(-1, 2) for r in rollouts[:3]])
    obs = jnp.array([[2.0, 5.0]])
    expected = (np.asarray(obs) - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8)
    np.testing.assert_allclose(workflow.normalize_obs(states[3], obs), expected, rtol=1e-4)
    np.testing.assert_array_equal(workflow.normalize_obs(states[0], obs), obs)
    plain = on_policy(Counting(), normalize_observations=False)
    without = jax.eval_shape(plain.init, jax.random.key(0))
    assert without.obs_statistics is None
    np.testing.assert_array_equal(plain.normalize_obs(without, obs), obs)


@pytest.mark.program
def test_values_are_in_units_of_what_the_steps_that_count_would_earn(counted):
    workflow, states, _, _ = counted
    of_rewards = lambda sizes: replace(states[3].reward_statistics, mean=jnp.float32(np.mean(sizes)))  # noqa: E731
    state = replace(states[3], reward_statistics=of_rewards([2.0, 1.0, 3.0]))
    assert float(states[3].reward_statistics.mean) == 1  # of rewards of 1
    np.testing.assert_allclose(workflow.value_scale(state), 2 * 7, rtol=1e-6)  # an episode has at most 7 steps
    soon = replace(state, numbers={"agent": state.numbers["agent"] | {"discount": jnp.float32(0.5)}})
    np.testing.assert_allclose(workflow.bound(soon).value_scale(soon), 2 * 2, rtol=1e-6)
    np.testing.assert_allclose(workflow.value_scale(replace(state, reward_statistics=of_rewards([0.0]))), 7, rtol=1e-6)
    plain = on_policy(Counting(), normalize_values=False)
    assert plain.value_scale(jax.eval_shape(plain.init, jax.random.key(0))) == 1


@pytest.mark.program
def test_the_size_of_rewards_does_not_change_what_ppo_learns():
    def learned(scale):
        workflow = on_policy(RewardTransform(probe.ObsActionReward(), scale=scale))
        state, step = jax.jit(workflow.init)(jax.random.key(0)), jax.jit(workflow.step)
        for i in range(3):
            state, _ = step(state, jax.random.key(i))
        return jax.tree.leaves(state.agent.actor.params)

    for small, large in zip(learned(1.0), learned(1024.0), strict=True):
        np.testing.assert_allclose(small, large, rtol=1e-3, atol=1e-5)


def test_a_stale_policy_is_that_of_so_many_iterations_ago(counted):
    workflow, states, rollouts, _ = counted
    for i in range(2, 5):
        assert leaves_equal(tree.index(states[i].stale_params, 0), states[i - 2].agent.actor.params)
        t = tree.index(rollouts[i], 0)
        obs = workflow.normalize_obs(states[i], t.obs)
        old = states[i - 2].agent.actor.params
        acted = workflow.agent.apply(old, obs)[0]
        now = workflow.agent.apply(states[i].agent.actor.params, obs)[0]
        assert float(jnp.abs(acted.mode() - now.mode()).max()) > 1e-4
        same = workflow.agent.build_batch(old, tree.index(rollouts[i], slice(0, 1)), acted_by_current_params=True)
        assert jnp.isfinite(same.log_prob).all()


@pytest.mark.program
def test_one_step_of_a2c_is_adam_on_the_gradient_over_all_rows():
    agent, key = A2C(learning_rate=1e-2, max_grad_norm=1e9), jax.random.key(0)
    workflow = on_policy(probe.ObsActionReward(), agent, num_epochs=1, batch_size=24, normalize_advantages=False)
    state = jax.jit(workflow.init)(key)
    collected, rollout, _ = jax.jit(workflow.collect)(state, key)
    after, _ = jax.jit(workflow.bound(state).learn)(collected, rollout, key)
    params = state.agent.actor.params
    t = rollout
    advantage = t.reward - workflow.agent.apply(params, t.obs)[1]  # episodes of one step

    def loss(params):
        policy, value = workflow.agent.apply(params, t.obs)
        actor = -(policy.log_prob(t.extras["sample"]) * advantage).mean()
        return actor + 0.5 * ((value - t.reward) ** 2).mean() - agent.entropy_coef * policy.entropy().mean()

    gradient = jax.grad(loss)(params)
    moved = jax.tree.map(lambda a, b: a - b, after.agent.actor.params, params)
    for g, m in zip(jax.tree.leaves(gradient), jax.tree.leaves(moved), strict=True):
        clear = np.abs(g) > 1e-5  # Adam's first step is its sign
        np.testing.assert_allclose(np.asarray(m)[clear], -1e-2 * np.sign(np.asarray(g)[clear]), rtol=1e-3)


@pytest.mark.program
def test_divergence_beyond_its_bound_ends_the_epochs():
    workflow = on_policy(probe.ObsActionReward(), num_epochs=8)
    steps = {}
    for target_kl in (0.0, 1e9):
        state = workflow.init(jax.random.key(0), {"agent": {"target_kl": target_kl}})
        steps[target_kl] = int(jax.jit(workflow.step)(state, jax.random.key(1))[1]["gradient_steps"])
    assert steps == {0.0: 3, 1e9: 24}


@pytest.mark.parametrize("options", [{"batch_size": 7}, {"num_envs": 0}, {"staleness": -1}, {"num_epochs": 0}])
def test_impossible_sizes_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        on_policy(probe.ObsActionReward(), **options)
