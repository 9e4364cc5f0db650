from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import TD3
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
        env, agent, num_envs=2, num_steps=8, capacity=32, n_step=4, chunk=3, batch_size=4, random_steps=0
    )
    state = jax.jit(workflow.init)(jax.random.key(0))
    given = (state.replay, state.window, jnp.int32(left)), state.window.rows, jnp.ones((3, 2), bool)
    _, window, after = jax.jit(lambda: workflow.make_store_function(jnp.bool_(True))(*given))()
    assert int(after) == max(left - 3, 0)
    assert int(window.num_filled) == min(left, 3)
