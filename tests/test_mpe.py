"""The particle environments beside mpe2 as it was recorded, and SciPy."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from scipy.optimize import linear_sum_assignment

from evorl import envs, tree
from evorl.envs import mpe, render
from evorl.envs.mpe import observations, world
from evorl.envs.mpe.formations import compute_assigned_distances
from evorl.envs.mpe.observations import select_nearest
from evorl.envs.mpe.tag import compute_boundary_penalty
from evorl.errors import OptionError
from evorl.spaces import group_sizes
from evorl.training.configuration import config
from evorl.training.configuration.discovery import find_choices
from evorl.training.configuration.parts import make_task

ROOT = Path(__file__).parents[1]
FILE = np.load(ROOT / "tests" / "recorded" / "mpe.npz")
LABELS = [name.removesuffix("|made") for name in FILE if name.endswith("|made")]
DEFAULT = [label for label in LABELS if " " not in label]
ENDING = [label for label in LABELS if "terminate_on_success" in label]
QUICK = [*DEFAULT, *ENDING, "crypto continuous=True", "tag stage=1 continuous=True"]
REST = [label for label in LABELS if label not in QUICK]
SCENARIOS = [getattr(mpe, name) for name in mpe.__all__ if name != "MPE"]
KEY = jax.random.key(0)


def game(label):
    made = json.loads(str(FILE[f"{label}|made"]))
    return mpe.MPE(getattr(mpe, made["scenario"])(**made["options"]), made["continuous"], made["limit"])


def recorded(label):
    """What mpe2 did, leaves [steps, ...], and which steps were the last."""
    env = game(label)

    def like():
        state, _ = env.reset(KEY, None)
        action = env.action_space.sample(KEY)
        chance = env.chance(KEY)
        _, after = env.advance(state, action, chance)
        return {"action": action, "before": state, "chance": chance, "obs": after.obs, "reward": after.reward}

    structure = jax.tree.structure(jax.eval_shape(like))
    steps = jax.tree.unflatten(structure, [FILE[f"{label}|{i}"] for i in range(structure.num_leaves)])
    return steps, FILE[f"{label}|terminated"], FILE[f"{label}|truncated"]


@pytest.mark.program
@pytest.mark.parametrize("labels", [QUICK, REST], ids=["quick", "rest"])
def test_a_step_is_that_of_mpe2(labels):
    """Steps that scripts/trust/mpe.py has recorded, from mpe2's state: the first ones and the most lively."""
    steps = {label: recorded(label) for label in labels}

    def advance():
        return {
            label: jax.vmap(game(label).advance)(*(step[name] for name in ("before", "action", "chance")))[1]
            for label, (step, _, _) in steps.items()
        }

    ours = jax.device_get(jax.jit(advance)())
    for label, (step, terminated, truncated) in steps.items():
        for name in ("obs", "reward"):
            for group, x in step[name].items():
                found = getattr(ours[label], name)[group]
                np.testing.assert_allclose(found, x, rtol=0, atol=1e-5, err_msg=f"{label}: {name} of {group}")
        np.testing.assert_array_equal(ours[label].terminated, terminated, label)
        np.testing.assert_array_equal(ours[label].truncated, truncated, label)
        assert len(terminated) >= 5
        assert label not in ENDING or (terminated.any() and not terminated.all())


@pytest.mark.program
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_game_meets_the_protocol(scenario):
    envs.check_env(mpe.MPE(scenario(), continuous=scenario is mpe.SimpleLine, max_episode_steps=4), episodes=2)


def test_episodes_begin_where_they_may():
    drawn_from = (mpe.SimpleTag, mpe.SimpleLine, mpe.SimpleReference, mpe.CollectTreasure)
    starts = jax.jit(lambda keys: [jax.vmap(scenario().init_state)(keys) for scenario in drawn_from])
    tag, line, reference, treasure = jax.device_get(starts(jax.random.split(KEY, 2000)))
    for x, most in (
        (tag.agent_positions, 1.0),
        (tag.landmark_positions, 0.9),
        (line.landmark_positions[..., 0], 0.25),
        (treasure.landmark_positions, 0.95),
    ):
        assert most - 0.01 < np.abs(x).max() <= most
        assert abs(x.mean()) < 0.02
    assert (np.abs(line.landmark_positions) < 1).all()
    np.testing.assert_allclose(
        np.linalg.norm(line.landmark_positions[..., 1] - line.landmark_positions[..., 0], axis=-1), 1.25, rtol=1e-5
    )
    for drawn, choices in ((reference.goal, 3), (treasure.scenario_state.kinds, 2)):
        np.testing.assert_allclose(np.bincount(drawn.ravel()) / drawn.size, 1 / choices, atol=0.03)
    assert (tag.velocity == 0).all()


def test_prey_that_nears_the_border_loses_as_in_the_paper():
    """Per axis: nothing within 0.9, then in proportion up to 1 at the border, beyond it exp(2x - 2), at most 10."""
    at = np.float32([[0.5, 0.95, -1.5, 9.0], [0.0, -0.92, 0.1, 0.95]])
    np.testing.assert_allclose(
        jax.jit(compute_boundary_penalty)(at), [0, 0.5 + 0.2, np.e, 10 + 0.5], rtol=1e-4, atol=1e-5
    )


def test_treasures_that_were_picked_up_come_back_elsewhere_and_of_a_kind_drawn_anew():
    scenario = mpe.CollectTreasure()
    state = jax.jit(scenario.init_state)(KEY)
    alive = np.array([True, False] * 3)
    state = replace(state, scenario_state=replace(state.scenario_state, alive=jnp.asarray(alive)))
    places, kinds = jnp.full_like(state.landmark_positions, 0.25), 1 - state.scenario_state.kinds
    after = jax.jit(scenario.apply_events)(state, (places, kinds))
    np.testing.assert_array_equal(after.scenario_state.kinds, np.where(alive, state.scenario_state.kinds, kinds))
    assert (after.landmark_positions[:, ~alive] == 0.25).all()
    assert (after.landmark_positions[:, alive] != 0.25).all()


@pytest.mark.parametrize("n", [1, 3, 6])
def test_places_are_assigned_as_by_scipy(n):
    far = np.random.default_rng(n).uniform(0, 2, (20, n, n)).astype(np.float32)
    ours = jax.jit(jax.vmap(compute_assigned_distances))(far)
    for x, found in zip(far, ours, strict=True):
        np.testing.assert_allclose(np.sort(found), np.sort(x[linear_sum_assignment(x)]), rtol=1e-6)


def test_the_nearest_come_first():
    away = np.array([[[3.0, 1.0, -2.0]], [[0.0, 0.0, 0.0]]], np.float32)
    known = np.array([[[7.0, 8.0, 9.0]]], np.float32)
    few, of_few = select_nearest(jnp.asarray(away), 2, jnp.asarray(known))
    many, of_many = select_nearest(jnp.asarray(away), 4, jnp.asarray(known))
    assert few[0].tolist() == [[1, -2]]
    assert of_few.tolist() == [[[8, 9]]]
    assert many[0].tolist() == [[1, -2, 3, 0]]
    assert of_many.tolist() == [[[8, 9, 7, 0]]]


def test_many_entities_are_computed_as_few_are(monkeypatch):
    """Contacts and nearest entities, ties included, in both forms."""
    n = 40
    agents = {"a": world.EntityGroup(n, size=0.2)}
    landmarks = {"b": world.EntityGroup(5, size=0.1, collides=True)}
    at = jax.random.uniform(jax.random.key(0), (2, n + 5), minval=-1, maxval=1)
    at = at.at[:, 1].set(at[:, 0])  # two at one place
    state = world.MPEState(at[:, :n], jnp.zeros((2, n)), at[:, n:], None, None, None, jnp.int32(0))
    away, more = at[:, None] - at[:, :n, None], jnp.arange(n * (n + 5.0)).reshape(1, n, n + 5)
    found = []
    for few in (100, 10):
        monkeypatch.setattr(world, "FEW_ENTITIES", few)
        monkeypatch.setattr(observations, "FEW_ENTITIES", few)
        force = world.compute_contact_forces(state, agents, landmarks)
        found.append([force, *observations.select_nearest(away, 7, more), *observations.select_nearest(away, 50, more)])
    assert abs(found[0][0]).max() > 1
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4, atol=1e-3)
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_games_by_name():
    named = [choice.read() for name, choice in find_choices("env").items() if name.startswith("mpe/")]
    assert {made["_target_"] for made in named} == {"MPE"}
    assert {made["scenario"]["_target_"] for made in named} == {s.__name__ for s in SCENARIOS}
    assert len(named) == len(SCENARIOS) == len(DEFAULT) == 12
    asked = config.compose_config(["env=mpe/spread", "env.scenario.num_agents=5", "env.continuous=true"])
    assert make_task(config.to_plain_data(asked)) == mpe.MPE(mpe.SimpleSpread(5), continuous=True)


def test_groups():
    assert group_sizes(mpe.MPE(mpe.SimpleWorldComm()).action_space) == {"adversary": 3, "agent": 2, "lead": 1}
    assert group_sizes(mpe.MPE(mpe.SimpleWorldComm(num_adversaries=1)).observation_space) == {"agent": 2, "lead": 1}


def test_wrong_options_are_refused():
    for make, named in (
        (lambda: mpe.SimpleSpread(0), "num_agents=0"), (lambda: mpe.SimpleSpread(local_ratio=2), "local_ratio=2"),
        (lambda: mpe.SimpleSpread(stage=2), "stage=2"), (lambda: mpe.SimpleTag(stage=3), "stage=3"),
        (lambda: mpe.SimpleAdversary(num_agent_neighbors=0), "num_agent_neighbors=0"),
        (lambda: mpe.SimpleWorldComm(num_food=0), "num_food=0"),
        (lambda: mpe.SimpleTag(num_obstacles=-1), "num_obstacles=-1"),
        (lambda: mpe.CollectTreasure(num_deposits=7), "num_deposits=7"),
        (lambda: mpe.MPE(mpe.Simple(), False, 0), "steps=0"),
        (lambda: mpe.SimpleReference(-1), "local_ratio=-1"), (lambda: mpe.SimpleLine(0), "num_agents=0"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=named) as refused:
            make()
        assert "\n" not in str(refused.value)
    with pytest.raises(OptionError, match="mpe/spread"):
        config.compose_config(["env=mpe/spred"])


@pytest.mark.parametrize("label", [*DEFAULT, "crypto continuous=True"])
def test_a_game_is_drawn(label, tmp_path):
    env, steps = game(label), recorded(label)[0]
    states = [tree.index(steps["before"], i) for i in (0, -1)]
    if isinstance(env.scenario, mpe.CollectTreasure):
        gone = np.full_like(states[1].landmark_positions, -999.0)
        states[1] = replace(states[1], landmark_positions=gone)  # all are picked up
    gif, png, *_ = render.save_episode(env, states, tmp_path)
    assert (gif.suffix, png.suffix) == (".gif", ".png")
    with Image.open(gif) as picture:
        first = np.asarray(picture.convert("RGB"))
        assert getattr(picture, "n_frames", 1) == 2
    assert first.shape == (480, 480, 3)
    assert len(np.unique(first.reshape(-1, 3), axis=0)) >= 3  # paper, an agent and its border
