import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.wrappers import Rewards
from evorl.errors import OptionError
from evorl.types import Env
from tests.counting import Counting


def rewards(env, steps):
    """Of an episode of Counting, which lasts as many steps as its level, each with reward 1."""
    state, _ = env.reset(jax.random.key(0), env.default_params)
    found = []
    for i in range(steps):
        state, timestep = env.step(jax.random.key(i), state, jnp.zeros(1), env.default_params)
        found.append(float(timestep.reward))
        if timestep.terminated | timestep.truncated:
            break
    return found


def test_rewards_come_in_sums_and_at_the_end():
    plain = rewards(Counting(), 9)
    delayed = rewards(Rewards(Counting(), scale=0.5, delay=2), 9)
    assert isinstance(Rewards(Counting()), Env)
    assert rewards(Rewards(Counting()), 9) == plain
    sums = [0.5 * sum(plain[max(0, i - 1) : i + 1]) if i % 2 else 0.0 for i in range(len(plain))]
    if len(plain) % 2:
        sums[-1] = 0.5 * plain[-1]
    np.testing.assert_allclose(delayed, sums)


def test_refuses_no_delay():
    with pytest.raises(OptionError, match="delay=0"):
        Rewards(Counting(), delay=0)
