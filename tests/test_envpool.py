"""EnvPool's environments beside the library itself, where it is there."""

import jax
import numpy as np
import pytest

from evorl import EnvPool
from evorl.agents import PPO
from evorl.envs.host import pool_registry
from evorl.errors import OptionError
from evorl.training.fit import fit
from evorl.training.progress import Budget
from evorl.vector_env import ResetStarts, RolloutPlan
from evorl.workflows import OnPolicy
from tests.test_host_envs import played

envpool = pytest.importorskip("envpool")


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    pool_registry.close_all()


@pytest.fixture
def made(monkeypatch):
    """The seeds of all that is made."""
    found, make = [], EnvPool._make_pool
    monkeypatch.setattr(EnvPool, "_make_pool", lambda self, seeds: found.append(seeds) or make(self, seeds))
    return found


def test_cartpole_is_what_the_library_plays_bit_for_bit(made):
    env = EnvPool("CartPole-v1", threads=1, max_episode_steps=9)
    _, stats, (rows, mask) = jax.device_get(played(env, 3, 40))
    assert mask.all()
    (seeds,) = made
    plain = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3, seed=seeds, max_episode_steps=9)
    obs = plain.reset()[0]
    for t in range(40):
        np.testing.assert_array_equal(rows.obs[t], obs)
        obs, reward, terminated, truncated, _ = plain.step(rows.action[t])
        np.testing.assert_array_equal(rows.next_obs[t], obs)
        np.testing.assert_array_equal(rows.reward[t], reward)
        np.testing.assert_array_equal(rows.terminated[t], terminated)
        np.testing.assert_array_equal(rows.truncated[t], truncated & ~terminated)
        ended = np.flatnonzero(terminated | truncated).astype(np.int32)
        if len(ended):
            obs = obs.copy()
            obs[ended] = plain.reset(ended)[0]
    assert stats.episodes.sum() == (rows.terminated | rows.truncated).sum() > 9


def test_an_evaluation_has_environments_of_its_own(made):
    env = EnvPool("CartPole-v1", threads=1)
    envs, _, _ = played(env, 2, 3)
    leased = pool_registry.get_pool(env).active_leases
    _, stats, _ = played(env, 2, 4, RolloutPlan(ResetStarts(), True, episodes=2, releases=True), envs, 5)
    assert (stats.episodes == 2).all()
    assert pool_registry.get_pool(env).active_leases == leased
    after, _, (rows, mask) = played(env, 2, 2, RolloutPlan(ResetStarts(), False, steps=2), envs, 6)
    np.testing.assert_array_equal(rows.obs[0], envs.obs)
    assert mask.all()
    np.testing.assert_array_equal(abs(after.env_state.lease), envs.env_state.lease)
    assert [len(seeds) for seeds in made] == [2, 2]
    assert len({seed for seeds in made for seed in seeds}) == 4


def test_dicts_and_pictures():
    _, _, (rows, mask) = jax.device_get(played(EnvPool("CheetahRun-v1", threads=1), 2, 3))
    assert mask.all()
    assert {name: x.shape for name, x in rows.obs.items()} == {"position": (3, 2, 8), "velocity": (3, 2, 9)}
    np.testing.assert_array_equal(rows.obs["velocity"][1:], rows.next_obs["velocity"][:-1])
    _, _, (rows, mask) = jax.device_get(played(EnvPool("Pong-v5", threads=1), 2, 3))
    assert mask.all()
    assert (rows.obs.shape, rows.obs.dtype) == ((3, 2, 4, 84, 84), np.uint8)
    np.testing.assert_array_equal(rows.obs[1:], rows.next_obs[:-1])


@pytest.mark.program
def test_a_training_ends_with_nothing_left():
    env = EnvPool("CartPole-v1", {}, 1)
    agent = PPO(hidden=(8,))
    workflow = OnPolicy(env, agent, num_envs=4, num_steps=8, batch_size=16, num_epochs=1, eval_episodes=4)
    result = fit(workflow, budget=Budget(iterations=3), evaluations=1)
    assert [row["env_steps"] for row in result.rows if row["kind"] == "train"][-1] == 96
    assert result.rows[-1]["return"] > 5
    assert pool_registry._POOLS == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "CartPole-v7"}, "unknown EnvPool environment CartPole-v7; did you mean CartPole-v"),
        ({"name": "Pong-v5", "options": {"nonsense": 1}}, "env.options={'nonsense': 1}: .*nonsense"),
        ({"name": "Blackjack-v1"}, "max_episode_steps=0: Blackjack-v1 has no default limit; give one"),
        ({"name": "Pong-v5", "threads": -1}, "threads=-1: must not be negative"),
    ],
)
def test_refuses_in_one_line(given, said):
    with pytest.raises(OptionError, match=said) as found:
        EnvPool(**given)
    assert "\n" not in str(found.value)
