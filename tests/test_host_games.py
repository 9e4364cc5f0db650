"""Parallel environments of PettingZoo as games on the host."""

import jax
import numpy as np
import pytest
from gymnasium import spaces as gym

from evorl.agents import PPO
from evorl.agents.team import Team
from evorl.envs import check_env
from evorl.envs.host import HostGame, pool_registry
from evorl.envs.host.parallel import make_parallel_env, make_zero_value
from evorl.errors import OptionError
from evorl.spaces import Box, Dict, Discrete, Members, ObsWithActionMask, random_action
from evorl.vector_env import hosts
from evorl.workflows import OnPolicy

FARM = "tests.hosted_games:Farm"


@pytest.fixture(autouse=True)
def closed():
    yield
    pool_registry.close_all()


def seed_of(key):
    """What an environment that begins with a key is given."""
    first, second = np.asarray(hosts.seeds_from_keys(key)).astype(np.uint64)
    return int((first << np.uint64(31)) ^ second)


def same_seen(game, raw, obs, seen):
    """That what ours has seen is what the library's agents have, and nothing of those that are not there."""
    for group, agents in game.agents.items():
        for i, agent in enumerate(agents):
            told = seen.get(agent)
            mask = told["action_mask"] if isinstance(told, dict) else np.ones(obs[group]["legal"].shape[1])
            told = told["observation"] if isinstance(told, dict) else told
            there = agent in raw.agents
            assert obs[group]["legal"][i].tolist() == (mask == 1 if there else np.arange(len(mask)) == 0).tolist()
            if told is not None:
                np.testing.assert_allclose(obs[group]["obs"][i], told, rtol=1e-6, atol=1e-30)
            else:
                assert not obs[group]["obs"][i].any()
    np.testing.assert_allclose(obs["state"], raw.state(), rtol=1e-6, atol=1e-30)


def side_by_side(game, raw, steps):
    """So many random steps of both, which must be alike; how many episodes were terminated and truncated."""
    keys, params, ends = iter(jax.random.split(jax.random.key(7), 3 * steps)), game.default_params, [0, 0]
    reset, step = jax.jit(game.reset), jax.jit(game.step)
    act = jax.jit(lambda obs, key: random_action(game.action_space, game.observation_space, obs, key))
    for i in range(steps):
        if i == 0 or not raw.agents:
            key = next(keys)
            (state, obs), (seen, _) = reset(key, params), raw.reset(seed=seed_of(key))
        same_seen(game, raw, jax.tree.map(np.asarray, obs), seen)
        action = jax.tree.map(np.asarray, act(obs, next(keys)))
        given = {agent: action[group][j] for group, of in game.agents.items() for j, agent in enumerate(of)}
        state, timestep = step(key, state, action, params)
        seen, rewards, _, truncated, _ = raw.step({agent: given[agent] for agent in raw.agents})
        obs, cut, over = timestep.obs, any(truncated.values()), not raw.agents
        for group, of in game.agents.items():
            np.testing.assert_allclose(timestep.reward[group], [rewards.get(agent, 0) for agent in of], rtol=1e-6)
        assert (timestep.terminated, timestep.truncated) == (over and not cut, over and cut)
        ends[0] += over and not cut
        ends[1] += over and cut
    return ends


@pytest.mark.program
def test_agents_leave_and_the_rest_play_on():
    game = HostGame(FARM)
    hen = ObsWithActionMask(Box(-1.0, 99.0, (3,)), (2,))
    assert game.observation_space.parts["hen"] == Members(hen, 2)
    assert game.action_space == Dict({"fox": Members(Discrete(4), 1), "hen": Members(Discrete(2, 3), 2)})
    assert game.max_episode_steps == 6
    terminated, truncated = side_by_side(game, make_parallel_env(FARM, {}), 300)
    assert terminated > 10
    assert truncated > 10


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["tag", pytest.param("world_comm", marks=pytest.mark.program)])
def test_a_game_of_mpe2_is_that_of_mpe2(name):
    pytest.importorskip("mpe2", reason="needs pip install mpe2")
    name = f"mpe2.simple_{name}_v3:parallel_env"
    assert side_by_side(HostGame(name), make_parallel_env(name, {}), 1000) == [0, 40]


@pytest.mark.program
def test_workers_play_the_same():
    def played(game):
        begin, step = jax.jit(jax.vmap(game.reset, (0, None))), jax.jit(jax.vmap(game.step, (0, 0, 0, None)))
        keys = jax.random.split(jax.random.key(1), 3)
        act = jax.vmap(lambda obs, key: random_action(game.action_space, game.observation_space, obs, key))
        state, obs = begin(keys, game.default_params)
        rows = []
        for _ in range(3):
            state, timestep = step(keys, state, act(obs, keys), game.default_params)
            obs = timestep.obs
            rows.append((obs, timestep.reward))
        return rows

    jax.tree.map(np.testing.assert_array_equal, played(HostGame(FARM)), played(HostGame(FARM, workers=2)))


@pytest.mark.program
def test_a_team_plays_it():
    game = HostGame(FARM)
    agent = PPO(hidden=(4,))
    team = Team(agent)
    workflow = OnPolicy(game, team, num_envs=3, num_steps=8, num_epochs=1, batch_size=12, eval_episodes=2)
    state = workflow.init(jax.random.key(0))
    step = jax.jit(workflow.step)
    for i in range(2):
        state, metrics = step(state, jax.random.key(i))
    assert pool_registry.find_fault() is None
    assert metrics["episodes"] > 0
    assert np.isfinite([metrics["return/fox"], metrics["return/hen"]]).all()


def test_what_fails_is_told():
    game = HostGame(FARM, options={"fault": 2})
    state, obs = jax.jit(game.reset)(jax.random.key(0), game.default_params)
    for i in range(2):
        action = random_action(game.action_space, game.observation_space, obs, jax.random.key(i))
        state, timestep = jax.jit(game.step)(jax.random.key(i), state, action, game.default_params)
        obs = timestep.obs
    message = "environment 0, in this process, step 1: step: RuntimeError: the fox is gone"
    assert str(pool_registry.find_fault()) == message
    assert not timestep.reward["hen"].any()


@pytest.mark.program
def test_it_is_a_game_and_a_limit_of_ours_is_truncated():
    with pytest.raises(OptionError, match="max_episode_steps=7: must be at most 6, the max_cycles of"):
        HostGame(FARM, max_episode_steps=7)
    assert HostGame(FARM, max_episode_steps=7, options={"limit": 9}).max_episode_steps == 7
    game = HostGame(FARM, max_episode_steps=2)
    check_env(game, episodes=2)
    state, obs = jax.jit(game.reset)(jax.random.key(0), game.default_params)
    step, cut = jax.jit(game.step), []
    for i in range(2):
        action = random_action(game.action_space, game.observation_space, obs, jax.random.key(i))
        state, timestep = step(jax.random.key(i), state, action, game.default_params)
        obs = timestep.obs
        cut.append((bool(timestep.terminated), bool(timestep.truncated)))
    assert cut == [(False, False), (False, True)]


def test_names_that_are_wrong_are_told():
    with pytest.raises(OptionError, match=r"tests.hosted_games:Fram: cannot be created: AttributeError"):
        HostGame("tests.hosted_games:Fram")
    with pytest.raises(OptionError, match=r"batch=2: needs env\.workers=1"):
        HostGame(FARM, batch=2)


def test_an_id_that_is_wrong_has_a_nearest_one():
    pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")
    with pytest.raises(OptionError, match="unknown environment of PettingZoo butterfly/pistonbal-v6; did you mean"):
        HostGame("butterfly/pistonbal-v6")


def test_nothing_is_nearest_to_zeros():
    space = gym.Dict({"a": gym.Box(1.0, 2.0, (2,)), "b": gym.Tuple([gym.Discrete(3, start=2), gym.MultiBinary(2)])})
    assert make_zero_value(space)["a"].tolist() == [1, 1]
    assert make_zero_value(space)["b"][0] == 2
    assert make_zero_value(space)["b"][1].tolist() == [0, 0]


def test_a_missing_package_is_told_with_what_to_install(monkeypatch):
    import importlib

    def gone(name, *rest):
        raise ImportError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", gone)
    with pytest.raises(OptionError, match=r'pettingzoo is missing; pip install "pettingzoo>='):
        HostGame("butterfly/pistonball-v6")
