from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents import TD3, TrainState
from evorl.errors import OptionError
from evorl.spaces import Box, Discrete
from evorl.types import Transition

OBS, ACTION = Box(-1.0, 1.0, (3,)), Box((-2.0, 0.0), (2.0, 1.0), (2,))


def numpy_mlp(params, x):
    p = params["params"]["MLP_0"] if "MLP_0" in params["params"] else params["params"]
    for i in range(2):
        x = np.maximum(x @ p[f"Dense_{i}"]["kernel"] + p[f"Dense_{i}"]["bias"], 0)
    return x @ p["Dense_2"]["kernel"] + p["Dense_2"]["bias"]


def numpy_critics(params, obs, action):
    x = np.concatenate([obs, action], -1)
    return np.stack([numpy_mlp({"params": params["params"][f"MLP_{i}"]}, x)[:, 0] for i in range(2)], -1)


def numpy_actor(params, obs):
    return np.array([0.0, 0.5]) + np.array([2.0, 0.5]) * np.tanh(numpy_mlp(params, obs))


@pytest.fixture
def setting(key):
    agent = TD3(hidden=(8, 8), observation_space=OBS, action_space=ACTION)
    keys = jax.random.split(key, 8)
    state, other = (jax.jit(agent.init)(key) for key in keys[:2])
    state = state.replace(
        actor=state.actor.replace(target_params=other.actor.params),
        critic=state.critic.replace(target_params=other.critic.params),
    )
    batch = Transition(
        jax.random.normal(keys[2], (64, 3)),
        jax.vmap(ACTION.sample)(jax.random.split(keys[3], 64)),
        jax.random.normal(keys[4], (64,)),
        jax.random.normal(keys[5], (64, 3)),
        jnp.arange(64) % 3 == 0,
        jnp.arange(64) % 5 == 1,
    )
    return agent, state, batch, keys[6]


@pytest.mark.program
def test_target_and_losses_equal_numpy(setting):
    agent, state, batch, key = setting
    agent = replace(agent, discount=0.9, policy_noise=0.4, noise_clip=0.3)
    s, b = jax.tree.map(np.asarray, (state, batch))
    noise = np.clip(0.4 * np.asarray(jax.random.normal(key, (64, 2))), -0.3, 0.3)
    assert (np.abs(noise) == np.float32(0.3)).any()
    next_action = numpy_actor(s.actor.target_params, b.next_obs) + np.array([2.0, 0.5]) * noise
    next_action = np.clip(next_action, [-2, 0], [2, 1])
    target = b.reward + 0.9 * ~b.terminated * numpy_critics(s.critic.target_params, b.next_obs, next_action).min(-1)
    np.testing.assert_allclose(agent.critic_target(state, batch, key), target, rtol=1e-4, atol=1e-5)

    values = numpy_critics(s.critic.params, b.obs, b.action)
    loss, _ = agent.critic_loss(state.critic.params, state, batch, key)
    np.testing.assert_allclose(loss, ((values - target[:, None]) ** 2).mean(0).sum(), rtol=1e-4)
    loss, _ = agent.actor_loss(state.actor.params, state, batch, key)
    expected = -numpy_critics(s.critic.params, b.obs, numpy_actor(s.actor.params, b.obs))[:, 0].mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_truncated_transitions_bootstrap_and_terminated_ones_do_not(setting):
    agent, state, batch, key = setting
    agent = replace(agent, discount=0.5)
    bootstrap = np.asarray(jax.jit(agent.critic_target)(state, batch, key) - batch.reward)
    assert (bootstrap[np.asarray(batch.terminated)] == 0).all()
    assert (bootstrap[np.asarray(batch.truncated & ~batch.terminated)] != 0).all()


def test_noise_and_bounds_are_in_the_units_of_the_action(setting):
    agent, state, batch, key = setting
    agent = replace(agent, exploration_noise=0.1)
    greedy = agent.mode(state.actor.params, batch.obs[0], None, key)[0]
    keys = jax.random.split(key, 4000)
    explored = jax.vmap(lambda key: agent.act(state.actor.params, batch.obs[0], None, key)[0])(keys)
    np.testing.assert_allclose((explored - greedy).std(0), [0.2, 0.05], rtol=0.05)
    wild = jax.vmap(
        lambda key: replace(agent, exploration_noise=9.0).act(state.actor.params, batch.obs[0], None, key)[0]
    )
    np.testing.assert_array_equal(wild(keys).max(0), [2, 1])
    np.testing.assert_array_equal(wild(keys).min(0), [-2, 0])


def test_adam_step_clipping_and_soft_target_equal_hand_computation():
    learner = TrainState.create({"w": jnp.array([1.0, 2.0])})
    loss = lambda p: ((p["w"] * jnp.array([3.0, 4.0])).sum(), {})  # noqa: E731  gradient (3, 4), norm 5
    stepped, _ = learner.apply_gradients(loss, 0.1, jnp.inf)
    np.testing.assert_allclose(stepped.params["w"], [0.9, 1.9], rtol=1e-5)  # Adam's first step is its sign
    clipped, _ = learner.apply_gradients(loss, 0.1, 1.0)
    np.testing.assert_allclose(clipped.opt_state.mu["w"], 0.1 * np.array([0.6, 0.8]), rtol=1e-5)
    followed = stepped.polyak_update(0.25)
    np.testing.assert_allclose(followed.target_params["w"], [0.975, 1.975], rtol=1e-5)
    np.testing.assert_array_equal(followed.params["w"], stepped.params["w"])


def test_ddpg_is_one_critic_without_smoothing(setting):
    _, _, batch, key = setting
    agent = TD3(hidden=(8, 8), num_critics=1, observation_space=OBS, action_space=ACTION, policy_noise=0.0)
    state = agent.init(key)
    action = agent.to_action(agent.actor.apply(state.actor.target_params, batch.next_obs))
    value = agent.critic.apply(state.critic.target_params, batch.next_obs, action)
    target = batch.reward + 0.99 * ~batch.terminated * value[:, 0]
    np.testing.assert_allclose(agent.critic_target(state, batch, key), target, rtol=1e-5)


def test_refuses_actions_that_are_not_vectors():
    with pytest.raises(OptionError, match="actions"):
        TD3(observation_space=OBS, action_space=Discrete(3))
