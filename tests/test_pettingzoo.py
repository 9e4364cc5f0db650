"""Games as environments of PettingZoo, and those as games on the host."""

import gymnasium
import numpy as np
import pytest

from evorl import tree
from evorl.envs.suites.gymnasium import key_from_any_seed, split_and_reset, split_and_step, to_pettingzoo
from evorl.errors import OptionError
from tests.gaming import Chase
from tests.tiny import ENV

CHASE = Chase()
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def pettingzoo():
    return pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")


@pytest.mark.parametrize("real", [False, True])
def test_pettingzoo_checks_a_game(pettingzoo, real):
    from pettingzoo.test import parallel_api_test

    parallel_api_test(to_pettingzoo(Chase(real=real)), 20)


def test_a_game_out_is_the_game(pettingzoo):
    out = to_pettingzoo(CHASE)
    assert out.possible_agents == ["hare_0", "hunter_0", "hunter_1"]
    assert out.observation_space("hunter_1") == gymnasium.spaces.Box(-9.0, 9.0, (3,))
    obs, _ = out.reset(seed=3)
    key, state, own = split_and_reset(CHASE, key_from_any_seed(3), None)
    rng = np.random.default_rng(0)
    for i in range(CHASE.max_episode_steps):
        for agent, at in (("hare_0", ("hare", 0)), ("hunter_0", ("hunter", 0)), ("hunter_1", ("hunter", 1))):
            assert out.observation_space(agent).contains(obs[agent])
            seen = tree.index(own[at[0]], at[1])
            told = obs[agent]["observation"] if agent == "hare_0" else obs[agent]
            np.testing.assert_allclose(told, seen["obs"] if agent == "hare_0" else seen, rtol=1e-6)
        np.testing.assert_array_equal(obs["hare_0"]["action_mask"], own["hare"]["legal"][0])
        np.testing.assert_allclose(out.state(), own["state"], rtol=1e-6)
        actions = {agent: rng.integers(3) for agent in out.agents}
        actions["hare_0"] = out.action_space("hare_0").sample(mask=obs["hare_0"]["action_mask"])
        given = {"hare": np.array([actions["hare_0"]]), "hunter": np.array([actions["hunter_0"], actions["hunter_1"]])}
        key, state, timestep = split_and_step(CHASE, key, state, given, None)
        obs, rewards, terminated, truncated, _ = out.step(actions)
        own = timestep.obs
        found = [rewards["hunter_0"], rewards["hunter_1"], rewards["hare_0"]]
        np.testing.assert_allclose(found, [*timestep.reward["hunter"], *timestep.reward["hare"]], rtol=1e-6)
        assert set(terminated.values()) == {False}
        assert set(truncated.values()) == {i == CHASE.max_episode_steps - 1}
    assert out.agents == []


def test_what_is_no_game_is_refused(pettingzoo):
    with pytest.raises(OptionError, match="is not a multi-agent environment"):
        to_pettingzoo(ENV)
    out = to_pettingzoo(CHASE)
    out.reset()
    with pytest.raises(OptionError, match="must be given for all agents; missing: hunter_0, hunter_1"):
        out.step({"hare_0": 1})
