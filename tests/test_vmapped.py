from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.errors import OptionError
from evorl.parts import resolve_numbers
from evorl.workflows import Vmapped
from tests.conftest import leaves_equal
from tests.contract_cases import EVOLVERS
from tests.tiny import OFF_POLICY

POPULATION = Vmapped(OFF_POLICY, 3)


def population(key):
    return jax.jit(POPULATION.init)(key)


@pytest.mark.program
def test_members_are_evaluated_on_the_same_episodes_and_train_on_their_own(key):
    state = jax.jit(POPULATION.step)(population(key), key)[0]
    state = tree.broadcast(tree.index(state, 0), 3)
    returns = jax.jit(POPULATION.evaluate)(state, key)["return"]
    by_flag = jax.jit(lambda state: POPULATION.step_or_evaluate(state, key, True)[2])(state)["return"]
    alone = jax.jit(OFF_POLICY.evaluate)(tree.index(state, 0), key)["return"]
    np.testing.assert_allclose(returns, np.full(3, alone), rtol=1e-6)
    np.testing.assert_allclose(by_flag, np.full(3, alone), rtol=1e-6)
    after, _ = jax.jit(POPULATION.step)(state, key)
    assert not leaves_equal(tree.index(after.agent, 0), tree.index(after.agent, 1))


@pytest.mark.program
def test_a_member_is_sound_where_no_real_leaf_but_its_replay_holds_nan(key):
    unbounded = resolve_numbers(OFF_POLICY, {"agent": {"max_grad_norm": np.inf}})
    state = population(key).replace(numbers=tree.broadcast(unbounded, 3))
    tables = jax.tree.map(lambda x: x.at[0].set(jnp.nan) if x.dtype == jnp.float32 else x, state.replay.tables)
    state = state.replace(replay=state.replay.replace(tables=tables))
    np.testing.assert_array_equal(POPULATION.has_no_nan(state), [True, True, True])
    envs = state.envs.replace(episode_return=state.envs.episode_return.at[1, 3].set(jnp.nan))
    np.testing.assert_array_equal(jax.jit(POPULATION.has_no_nan)(state.replace(envs=envs)), [True, False, True])


def test_copies_that_learn_from_demonstrations_alone_are_refused():
    alone = replace(OFF_POLICY, num_steps=0, random_steps=0)
    with pytest.raises(OptionError, match=r"inner\.num_steps=0: must be at least 1: demonstrations can be given to"):
        Vmapped(alone, 2)


def test_copies_may_have_no_numbers():
    case = next(case for case in EVOLVERS if case.name == "snes")
    assert not jax.tree.leaves(case.numbers)
    state = jax.eval_shape(Vmapped(case.workflow, 3).init, jax.random.key(0))
    assert state.iteration.shape == (3,)
