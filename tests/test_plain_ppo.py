"""PPO beside one in a single file of plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import PPO, CartPole, OnPolicy, tree
from tests import plain_ppo


@pytest.mark.program
def test_learning_is_that_of_a_plain_ppo():
    """Three iterations on the rollouts of evorl, with episodes that end and some that time ends within them."""
    config = plain_ppo.Config(num_envs=8, num_steps=48, num_epochs=3, batch_size=32, max_episode_steps=30)
    sizes = {"num_envs": 8, "num_steps": 48, "num_epochs": 3, "batch_size": 32}
    workflow = OnPolicy(CartPole(max_episode_steps=30), PPO(hidden=(16, 8)), **sizes)
    state, collect, ours = jax.jit(workflow.init)(jax.random.key(0)), jax.jit(workflow.collect), jax.jit(workflow.learn)
    params = state.agent.actor.params["params"]
    plain = plain_ppo.init(
        workflow.env, {name: params[name] for name in ("policy", "value")}, jax.random.key(0), config
    )
    theirs, ends = jax.jit(plain_ppo.learn, static_argnums=3), np.zeros(2, int)
    for i in range(3):
        state, t, _ = collect(state, jax.random.key(2 * i))
        logits, _, value = t.extras["outputs"]
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), t.extras["sample"][..., None], -1)[..., 0]
        rollout = plain_ppo.Rollout(
            t.obs, t.extras["sample"], log_prob, value, t.reward, t.next_obs, t.terminated, t.truncated
        )
        key = jax.random.key(2 * i + 1)
        keys = [jax.random.split(jax.random.fold_in(key, epoch))[0] for epoch in range(3)]
        orders = jnp.concatenate([tree.random_permutation(one, 8 * 48) for one in keys]).reshape(-1, 32)
        state, _ = ours(state, t, key)
        plain = theirs(plain, rollout, orders, config)
        ends += [int(t.terminated.sum()), int(t.truncated.sum())]
        for name in ("policy", "value"):
            for a, b in zip(
                jax.tree.leaves(state.agent.actor.params["params"][name]),
                jax.tree.leaves(plain.params[name]),
                strict=True,
            ):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        for a, b in ((state.obs_statistics, plain.obs_statistics), (state.reward_statistics, plain.reward_statistics)):
            np.testing.assert_allclose(a.mean, b.mean, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(a.sum_of_squares, b.sum_of_squares, rtol=1e-4)
    assert ends.min() > 3
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), plain.params["policy"], params["policy"])
    assert max(jax.tree.leaves(moved)) > 0.01
    assert int(state.iteration) == 3
