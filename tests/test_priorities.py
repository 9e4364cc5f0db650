"""A replay with priorities in place of the ring: what every workflow that learns from one tells it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import DQN, DiscreteSAC
from evorl.ec import CEM
from evorl.errors import OptionError
from evorl.workflows import CEMRL, ERL, OffPolicy, SharedReplay
from tests.conftest import leaves_equal
from tests.ranked import Ranked
from tests.tiers import program_fixture
from tests.tiny import CHOICES, SMALL, UPDATES

SPACES = CHOICES.observation_space, CHOICES.action_space
ONE = {"num_envs": 4, "num_steps": 2, "num_updates": 1, "policy_delay": 1, "replay": Ranked()}
WORKFLOW = OffPolicy(CHOICES, DQN(hidden=(8,), observation_space=SPACES[0], action_space=SPACES[1]), **ONE, **SMALL)


@program_fixture(scope="module")
def started():
    state = jax.jit(WORKFLOW.init)(jax.random.key(0))
    return jax.jit(WORKFLOW.step)(state, jax.random.key(1))[0]


def drawn(state, key):
    """What the first round of learning samples, and the TD errors of its rows by NumPy."""
    sample = state.replay.sample(jax.random.split(jax.random.fold_in(key, 0), 3)[0], (1, WORKFLOW.batch_size))
    sample = tree.index(sample, 0)
    t, params, q = sample.rows, state.agent.actor.params, WORKFLOW.agent.network.apply
    values, best = np.asarray(q(params, t.obs)), np.asarray(q(params, t.next_obs)).argmax(1)
    after, rows = np.asarray(q(state.agent.actor.target_params, t.next_obs)), np.arange(WORKFLOW.batch_size)
    t = jax.tree.map(np.asarray, t)
    target = t.reward + 0.99 * ~t.terminated * after[rows, best]
    return sample, target - values[rows, t.action]


def test_the_errors_of_what_was_learned_from_are_its_priorities(started):
    key = jax.random.key(2)
    sample, error = drawn(started, key)
    after, metrics = jax.jit(WORKFLOW.learn)(started, key, jnp.int32(1))
    np.testing.assert_allclose(after.replay.priorities[sample.index], np.abs(error), rtol=1e-4, atol=1e-6)
    others = np.setdiff1d(np.arange(SMALL["capacity"]), sample.index)
    np.testing.assert_array_equal(after.replay.priorities[others], started.replay.priorities[others])
    assert leaves_equal(after.replay.ring, started.replay.ring)
    assert "td_error" not in metrics


def test_rows_count_by_their_weight(started):
    key = jax.random.key(3)
    first, _ = jax.jit(WORKFLOW.learn)(started, jax.random.key(2), jnp.int32(1))  # so that weights differ
    sample, error = drawn(first, key)
    assert np.ptp(sample.weight) > 0.1
    _, metrics = jax.jit(WORKFLOW.learn)(first, key, jnp.int32(1))
    np.testing.assert_allclose(metrics["critic_loss"], (sample.weight * 0.5 * error**2).mean(), rtol=1e-4)


@pytest.mark.program
def test_members_tell_one_replay():
    population = SharedReplay(WORKFLOW, 3)
    state = jax.jit(population.init)(jax.random.key(0))
    after, _ = jax.jit(population.step)(state, jax.random.key(1))
    assert after.replay.priorities.shape == (SMALL["capacity"],)
    assert int((after.replay.priorities > 0).sum()) == int(after.replay.size)
    learned_from = np.asarray((after.replay.priorities > 0) & (after.replay.priorities != 1)).sum()
    assert WORKFLOW.batch_size // 2 < learned_from <= 3 * WORKFLOW.batch_size


@pytest.mark.program
def test_agents_of_a_hybrid_tell_their_replay():
    workflow = ERL(
        CHOICES,
        DiscreteSAC(hidden=(8,), observation_space=SPACES[0], action_space=SPACES[1]),
        replay=Ranked(),
        **UPDATES,
        **SMALL,
    )
    step = jax.jit(workflow.step)
    state = jax.jit(workflow.init)(jax.random.key(0))
    for i in range(3):
        state, _ = step(state, jax.random.key(i))
    priorities = np.asarray(state.replay.priorities)
    assert ((priorities > 0) & (priorities != 1)).any()


def test_where_priorities_cannot_be_they_are_refused():
    agent = DiscreteSAC(hidden=(8,), observation_space=SPACES[0], action_space=SPACES[1])
    workflow = CEMRL(CHOICES, agent, CEM(4), replay=Ranked(), **UPDATES, **SMALL)
    with pytest.raises(OptionError, match="replay=Ranked: has priorities, which CEMRL does not support"):
        jax.eval_shape(workflow.init, jax.random.key(0))

    class Silent(DQN):
        def critic_loss(self, *args):
            loss, _ = super().critic_loss(*args)
            return loss, {"critic_loss": loss}

    silent = replace(WORKFLOW, agent=Silent(hidden=(8,)))
    state = jax.eval_shape(silent.init, jax.random.key(0))
    with pytest.raises(OptionError, match=r"replay=Ranking: needs the metric \"td_error\" of the agent's critic_loss"):
        jax.eval_shape(silent.step, state, jax.random.key(0))
