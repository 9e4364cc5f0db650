"""Agents that remember: what is learned from is what acted, whatever the segments."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import PPO
from evorl.errors import OptionError
from evorl.networks.network import FEEDFORWARD
from evorl.networks.recurrent import GRU, LSTM, reset_memory
from evorl.networks.s5 import S5
from evorl.workflows import OnPolicy
from evorl.workflows.sampling import Shuffled
from tests.counting import Counting
from tests.remembering import FlaxGRU, Recall
from tests.tiers import program_fixture

NUM_ENVS, NUM_STEPS = 3, 8


CORES = {
    "flax": FlaxGRU(),
    "gru": GRU(8),
    "lstm": LSTM(8),
    "s5": S5(width=8, layers=2, states=8),
}


def on_policy(env, core=CORES["gru"], **options):
    agent = PPO(hidden=(8,), core=core)
    defaults = {"num_envs": NUM_ENVS, "num_steps": NUM_STEPS, "num_epochs": 2, "batch_size": 24, "eval_episodes": 8}
    return OnPolicy(env, agent, **defaults | options)


@program_fixture(scope="module", params=CORES.values(), ids=CORES)
def rollouts(request):
    """Of Counting, whose episodes have 1 to 7 steps: two rollouts of one policy, which is random, and the state."""
    workflow = on_policy(Counting(), request.param, normalize_observations=False)
    state = workflow.init(jax.random.key(0))
    collect = jax.jit(workflow.collect)
    state, first, _ = collect(state, jax.random.key(1))
    state, second, _ = collect(replace(state, iteration=jnp.int32(1)), jax.random.key(2))
    return workflow, state, first, second


def remembered(workflow, params, rollout, memory):
    """Step by step, one environment after the other: log probability, value, and value of the successor."""
    network, found = workflow.agent.network, []
    step = jax.jit(partial(network.apply, method="step"))
    for index in range(NUM_ENVS):
        t, seen = jax.tree.map(lambda x, index=index: x[:, index], rollout), tree.index(memory, index)
        for i in range(NUM_STEPS):
            now = tree.index(t, i)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), now.memory, seen)
            seen, outputs = step(params, seen, now.obs)
            policy, value = workflow.agent.policy_and_value(outputs)
            _, successor = workflow.agent.policy_and_value(step(params, seen, now.next_obs)[1])
            found.append((policy.log_prob(now.extras["sample"]), value, successor))
            seen = workflow.agent.initial_memory() if now.is_done else seen
    return np.moveaxis(np.reshape(found, (NUM_ENVS, NUM_STEPS, 3)), 0, 1)


def test_what_is_learned_from_is_what_acted(rollouts):
    """The second rollout begins within episodes, with the memory that the first has left, and ends within others."""
    workflow, state, first, second = rollouts
    assert 0 < int(second.is_done.sum()) < second.is_done.size
    assert not np.asarray(first.is_done[-1]).all()
    params, agent = state.agent.actor.params, replace(workflow.agent, gae_lambda=0.0)
    after = workflow.agent.apply_sequence(params, first.obs, tree.index(first.memory, 0), first.is_done)[0]
    memory = reset_memory(tree.index(after, -1), first.is_done[-1])
    wanted = remembered(workflow, params, second, memory)
    batch = agent.build_batch(params, second, acted_by_current_params=True)
    np.testing.assert_allclose(batch.log_prob, wanted[..., 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(batch.value, wanted[..., 1], rtol=1e-5, atol=1e-6)
    one_step = second.reward + agent.discount * ~second.terminated * wanted[..., 2]
    np.testing.assert_allclose(batch.target, one_step, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 4, 8])
def test_segments_of_any_length_give_the_same(rollouts, length):
    workflow, state, _, second = rollouts
    workflow = replace(workflow, sampling=Shuffled(length))
    params = state.agent.actor.params
    batch = workflow.agent.build_batch(params, second, acted_by_current_params=True)
    segments = workflow.split_batch(batch)
    assert segments.log_prob.shape == (24 // length, length)
    steps_first = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), replace(segments, memory=None))
    _, policy, value = workflow.agent.apply_sequence(params, steps_first.obs, segments.memory, steps_first.done)
    np.testing.assert_allclose(policy.log_prob(steps_first.raw_action), steps_first.log_prob, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(value, steps_first.value, rtol=1e-5, atol=1e-6)
    whole = workflow.agent.loss(params, replace(workflow, sampling=Shuffled(8)).split_batch(batch))[0]
    np.testing.assert_allclose(workflow.agent.loss(params, segments)[0], whole, rtol=1e-4, atol=1e-6)


def test_a_gradient_flows_along_a_segment_and_not_before_it(rollouts):
    """Backwards through time, of the value at a step by what was seen up to two steps before, in segments of two."""
    workflow, state, _, second = rollouts
    agent, params = workflow.agent, state.agent.actor.params

    def value(obs):
        t = replace(
            second, obs=obs, terminated=jnp.zeros_like(second.is_done), truncated=jnp.zeros_like(second.is_done)
        )
        batch = replace(workflow, sampling=Shuffled(2)).split_batch(
            agent.build_batch(params, t, acted_by_current_params=True)
        )
        steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), replace(batch, memory=None))
        return agent.apply_sequence(params, steps.obs, batch.memory, steps.done)[2].reshape(2, 4, 3)[
            1, 2, 0
        ]  # that of step 5

    slope = np.abs(jax.grad(value)(second.obs)).sum(-1)[:, 0]
    assert (slope > 0).tolist() == [False] * 4 + [True] * 2 + [False] * 2


@pytest.mark.program
def test_a_policy_that_remembers_learns_what_another_cannot():
    """Return 1 for the sign of three steps ago; without memory 0 in the mean, to 4 standard errors of 128 episodes."""
    found = []
    for core in (GRU(16), FEEDFORWARD):
        env = Recall()
        agent = PPO(hidden=(16,), core=core, learning_rate=3e-3)
        workflow = OnPolicy(env, agent, num_envs=64, num_steps=9, num_epochs=4, batch_size=144, eval_episodes=128)
        state = jax.jit(workflow.init)(jax.random.key(0))
        run = jax.jit(lambda state, keys, workflow=workflow: jax.lax.scan(workflow.step, state, keys)[0])
        state = run(state, jax.random.split(jax.random.key(1), 100))
        found.append(float(jax.jit(workflow.evaluate)(state, jax.random.key(2))["return"]))
    assert found[0] > 0.9
    assert abs(found[1]) < 4 / np.sqrt(128)


@pytest.mark.parametrize(("options", "message"), [
    ({"sampling": Shuffled(3)}, "sampling.length=3: must divide num_steps, 8"),
    ({"batch_size": 12}, "batch_size=12: must be a multiple of the segment length, 8"),
])  # fmt: skip
def test_segments_that_do_not_fit_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        on_policy(Counting(), **options)
