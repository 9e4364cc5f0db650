"""The contract of workflows where the environment lives on the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import TD3
from evorl.ec import CEM
from evorl.envs.host import HostEnv, pool_registry
from evorl.vector_env import hosts
from evorl.workflows import CEMRL, OffPolicy, Vmapped
from tests import contract
from tests.conftest import leaves_equal
from tests.tiny import SMALL, UPDATES

ENV = HostEnv("tests.hosted:Walk-v0")
AGENT = TD3(hidden=(8, 8))
CEM_RL = contract.Case("cem_rl", CEMRL(ENV, AGENT, CEM(4), **UPDATES, **SMALL))


@pytest.fixture(autouse=True)
def nothing_fails():
    yield
    assert pool_registry.find_fault() is None
    pool_registry.close_all()


@pytest.mark.program
def test_cem_rl_keeps_the_contract():
    contract.check_types(CEM_RL)
    contract.check_runs(CEM_RL)  # it goes on nowhere: its episodes are whole
    contract.check_numbers(CEM_RL)
    assert pool_registry.get_pool(ENV).active_leases == ()


@pytest.mark.program
def test_two_members_are_two_runs_and_an_evaluation_leaves_their_environments_alone():
    inner = OffPolicy(ENV, AGENT, num_envs=2, num_steps=2, num_updates=2, n_step=2, **SMALL)
    both, keys = Vmapped(inner, 2), jax.random.split(jax.random.key(3), 5)
    state = jax.jit(both.init)(keys[0])
    alone = [jax.jit(inner.init)(key) for key in jax.random.split(keys[0])]
    step, evaluate, of_one = jax.jit(both.step), jax.jit(both.evaluate), jax.jit(inner.step)
    for i, key in enumerate(keys[1:]):
        state, _ = step(state, key)
        alone = [of_one(one, own)[0] for one, own in zip(alone, jax.random.split(key), strict=True)]
        if i == 1:
            evaluate(state, key)
    for i in range(2):
        one, other = (hosts.clear_leases(x.replace(env_params=None)) for x in (tree.index(state, i), alone[i]))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4), one, other)
    copied = jax.jit(both.copy_members)(state, jnp.array([1, 1]))
    assert leaves_equal(copied.replay, state.replay)
    own = state.envs.env_state.lease
    np.testing.assert_array_equal(copied.envs.env_state.lease, [-abs(own[0]), own[1]])
