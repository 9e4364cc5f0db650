"""JaxMARL's games beside the library itself, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.envs import check_env
from evorl.envs.games.agent_groups import group_agents, split_groups, stack_groups
from evorl.envs.suites.jaxmarl import JaxMARL
from evorl.errors import OptionError
from evorl.spaces import Box, Discrete, group_sizes, random_action
from tests.tiers import program_fixture

STEPS = 1000
KEY = jax.random.key(5)
pytestmark = pytest.mark.filterwarnings("ignore")


@program_fixture
def jaxmarl():
    return pytest.importorskip("jaxmarl", reason="needs the extra jaxmarl")


def by_agent(values, agents):
    """What the library says of each agent: by name, in a row, or in arrays that lead with agents."""
    if isinstance(values, tuple):
        return dict(zip(agents, values, strict=True))
    if isinstance(values, dict) and agents[0] in values:
        return {agent: values[agent] for agent in agents}
    return {agent: tree.index(values, i) for i, agent in enumerate(agents)}


def side_by_side(ours, theirs, masks=""):
    """STEPS random legal steps of both: ours, and of the library what agents see, earn and may do; leaves [STEPS]."""

    def begin(key):
        return *ours.reset(key, None), tree.drop_weak_types(theirs.reset(key)[1])

    def step(carry, key):
        state, obs, inner = carry
        key_action, key_step, key_reset = jax.random.split(key, 3)
        action = random_action(ours.action_space, ours.observation_space, obs, key_action)
        state, timestep = ours.step(key_step, state, action, None)
        given = {agent: action[group][i] for group, of in ours.agents.items() for i, agent in enumerate(of)}
        given = {agent: given[agent] for agent in theirs.agents}
        given = given if isinstance(theirs.agents[0], str) else tuple(given.values())
        seen, inner, rewards, done, info = theirs.step_env(key_step, inner, given)
        raw = {"obs": by_agent(seen, theirs.agents), "reward": by_agent(rewards, theirs.agents)}
        raw |= {"legal": getattr(theirs, masks)(inner)} if masks else {}
        raw |= {"state": seen["world_state"]} if "state" in ours.observation_space.parts else {}
        over = timestep.terminated | timestep.truncated
        carry = tree.select(over, begin(key_reset), (state, timestep.obs, tree.drop_weak_types(inner)))
        return carry, (timestep, raw, done["__all__"], info)

    run = jax.jit(lambda: jax.lax.scan(step, begin(KEY), jax.random.split(KEY, STEPS))[1])
    return jax.tree.map(np.asarray, run())


def close(a, b, at=...):
    assert a.shape == b.shape
    np.testing.assert_allclose(a[at], np.asarray(b[at], np.float32), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "of_map", "masks", "options", "members"),
    [
        ("HeuristicEnemySMAX", "3m", "get_avail_actions", {}, {"ally": 3}),
        ("hanabi", "", "get_legal_moves", {"num_agents": 3}, {"agent": 3}),
        ("overcooked", "cramped_room", "", {}, {"agent": 2}),
        ("coin_game", "", "", {}, {"agent": 2}),
        ("jaxnav", "Grid-Rand-Poly", "", {"lidar_num_beams": 20, "max_steps": 60}, {"agent": 2}),
        ("storm_2p", "", "", {}, {"agent": 2}),
        ("SMAX", "2s3z", "get_avail_actions", {}, {"ally": 5, "enemy": 5}),
        ("ant_4x2", "", "", {"auto_reset": False}, {"agent": 4}),
        ("storm_np", "", "", {}, {"agent": 2}),
        ("overcooked_v2", "cramped_room", "", {}, {"agent": 2}),
        ("switch_riddle", "", "", {}, {"agent": 3}),
        ("MPE_simple_tag_v3", "", "", {}, {"adversary": 3, "agent": 1}),
    ],
)
def test_a_game_is_that_of_jaxmarl(jaxmarl, name, of_map, masks, options, members):
    ours = JaxMARL(name, of_map, options=options)
    theirs = jaxmarl.make(name, **options, **ours._map_option)
    assert group_sizes(ours.action_space) == members
    timestep, raw, done, _ = side_by_side(ours, theirs, masks)
    ended = timestep.terminated | timestep.truncated
    late = timestep.truncated if name.startswith("storm") else np.zeros(STEPS, bool)  # begun anew within their step
    for group, agents in ours.agents.items():
        for i, agent in enumerate(agents):
            seen = jax.tree.map(lambda x, i=i: x[:, i], timestep.obs[group])
            if masks:
                np.testing.assert_array_equal(seen["legal"], raw["legal"][agent])
            seen = seen["obs"] if masks else seen
            jax.tree.map(lambda a, b: close(a, b, ~late), seen, raw["obs"][agent])
            close(timestep.reward[group][:, i], raw["reward"][agent], ~late)
    if "state" in raw:
        close(timestep.obs["state"], raw["state"])
    if "SMAX" in name or "MPE" in name:  # in which time is up a step late
        np.testing.assert_array_equal(timestep.terminated, done)
    else:
        np.testing.assert_array_equal(ended, done)
    assert ended.any()


def test_battles_report_whether_they_are_won(jaxmarl, monkeypatch):
    env = JaxMARL("HeuristicEnemySMAX", "3m")
    state, obs = env.reset(KEY, None)
    action = random_action(env.action_space, env.observation_space, obs, KEY)
    assert not env.step(KEY, state, action, None)[1].info["won"]
    step = env.env.step_env

    def step_to_victory(key, inner, actions):
        seen, inner, rewards, done, info = step(key, inner, actions)
        return seen, inner, {agent: reward + 1 for agent, reward in rewards.items()}, done, info

    monkeypatch.setattr(env.env, "step_env", step_to_victory)
    assert env.step(KEY, state, action, None)[1].info["won"]
    assert not JaxMARL("SMAX", "3m").episode_info


def test_shaped_rewards_are_an_option(jaxmarl):
    ours = JaxMARL("overcooked", max_episode_steps=20, shaping=0.5, options={"random_reset": True})
    timestep, raw, _, info = side_by_side(ours, jaxmarl.make("overcooked", max_steps=20, random_reset=True))
    np.testing.assert_array_equal(np.flatnonzero(timestep.truncated), np.arange(19, STEPS, 20))
    assert not timestep.terminated.any()
    for i, agent in enumerate(("agent_0", "agent_1")):
        close(timestep.reward["agent"][:, i], raw["reward"][agent] + 0.5 * info["shaped_reward"][agent])
    assert any(x.any() for x in info["shaped_reward"].values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "SMAXX"}, "unknown game of JaxMARL SMAXX; did you mean SMAX"),
        ({"name": "SMAX", "map": "5m_vs_6n"}, "unknown map of SMAX 5m_vs_6n; did you mean 5m_vs_6m"),
        (
            {"name": "overcooked", "map": "cramped_rom"},
            "unknown map of overcooked cramped_rom; did you mean cramped_room",
        ),
        ({"name": "hanabi", "map": "3m"}, "env.map=3m: hanabi has no maps; only SMAX, HeuristicEnemySMAX, overcooked"),
        ({"name": "hanabi", "shaping": 1.0}, "env.shaping=1.0: must be 0; only "),
        ({"name": "hanabi", "options": {"hands": 3}}, "env.options={'hands': 3}: hanabi cannot be created, TypeError"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(jaxmarl, given, said):
    with pytest.raises(OptionError) as told:
        JaxMARL(**given)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "of_map"),
    [
        ("coin_game", ""),
        ("SMAX", "3m"),
        ("hanabi", ""),
        ("overcooked", ""),
        ("jaxnav", ""),
        ("hopper_3x1", ""),
    ],
)
def test_it_is_a_game(jaxmarl, name, of_map):
    check_env(JaxMARL(name, of_map, max_episode_steps=12), episodes=2)


def test_bodies_that_differ_are_groups_of_their_own(jaxmarl):
    """Of the hopper's three joints the middle one sees a number more."""
    assert JaxMARL("hopper_3x1").agents == {"agent_0": ("agent_0", "agent_2"), "agent_1": ("agent_1",)}


def test_agents_by_name_become_groups():
    few, many = (Box(0.0, 1.0, (2,)), Discrete(2)), (Box(0.0, 1.0, (3,)), Discrete(2))
    assert group_agents({"adversary_0": few, "agent_0": many, "adversary_1": few}) == {
        "adversary": ("adversary_0", "adversary_1"),
        "agent": ("agent_0",),
    }
    assert group_agents({0: few, 1: few}) == {"agent": (0, 1)}
    assert group_agents({"good3": few, "good4": many}) == {"good3": ("good3",), "good4": ("good4",)}
    agents = {"adversary": ("a", "c"), "agent": ("b",)}
    values = {"a": jnp.array([1, 2]), "b": jnp.array([3, 4]), "c": jnp.array([5, 6])}
    by_group = stack_groups(agents, values)
    np.testing.assert_array_equal(by_group["adversary"], [[1, 2], [5, 6]])
    assert {agent: x.tolist() for agent, x in split_groups(agents, by_group).items()} == {
        "a": [1, 2],
        "b": [3, 4],
        "c": [5, 6],
    }


def test_a_missing_package_is_told_with_what_to_install(monkeypatch):
    import importlib

    def gone(name, *rest):
        raise ImportError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", gone)
    with pytest.raises(OptionError, match=r'env=jaxmarl/...: jaxmarl is missing; pip install "jaxmarl>='):
        JaxMARL("SMAX")
