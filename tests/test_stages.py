"""Step and evaluate, written as three stages each, and the one program that a training compiles of both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import PBT, PPO, TD3, CartPole, Evolution, MLPPolicy, OffPolicy, OnPolicy, OpenES, Vmapped
from evorl.envs.sanity import Continuous
from evorl.workflows.base import step_or_evaluate

STUDENT = OnPolicy(CartPole(), PPO(hidden=(4,)), num_envs=2, num_steps=4, num_epochs=1, batch_size=8, eval_episodes=2)
SIZES = {"capacity": 100, "batch_size": 8, "random_steps": 8, "num_envs": 2, "eval_episodes": 2}
WORKFLOWS = {
    "on policy": STUDENT,
    "off policy": OffPolicy(Continuous(), TD3(hidden=(4,)), **SIZES),
    "evolution": Evolution(Continuous(), MLPPolicy(hidden=()), OpenES(4), eval_episodes=4, vbn_steps=8),
    "PBT": PBT(Vmapped(STUDENT, 4), steps_per_generation=2),
}


@pytest.mark.program
@pytest.mark.parametrize("name", WORKFLOWS)
def test_the_joined_program_gives_what_step_and_evaluate_give(name):
    workflow, (key_init, key) = WORKFLOWS[name], jax.random.split(jax.random.key(0))
    before = jax.jit(workflow.init)(key_init)
    state, metrics = jax.jit(workflow.step)(before, key)
    joined = jax.jit(lambda state, key, evaluating: step_or_evaluate(workflow, state, key, evaluating))
    same_state, same_metrics, none = joined(before, key, jnp.bool_(False))
    assert_close((state, metrics), (same_state, same_metrics))
    kept, nothing, evaluation = joined(state, key, jnp.bool_(True))
    assert_close(jax.jit(workflow.evaluate)(state, key), evaluation)
    assert_close(state, kept)
    assert all(not np.any(x) for x in jax.tree.leaves(nothing))
    assert jax.tree.structure(none) == jax.tree.structure(evaluation)
    assert joined._cache_size() == 1


def assert_close(a, b):
    """Compare trees; two programs round differently."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_a_flag_of_python_needs_no_branch():
    """Only what is asked for is traced."""
    state = jax.eval_shape(STUDENT.init, jax.random.key(0))
    for flag, done in ((False, "learning"), (True, "evaluation")):
        text = str(
            jax.make_jaxpr(lambda s, k, flag=flag: step_or_evaluate(STUDENT, s, k, flag))(state, jax.random.key(0))
        )
        plain = STUDENT.evaluate if flag else STUDENT.step
        assert len(text) <= 1.05 * len(str(jax.make_jaxpr(plain)(state, jax.random.key(0)))), done
