"""Gymnasium's MuJoCo tasks as pure environments, beside Gymnasium's own."""

from contextlib import closing
from dataclasses import replace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents import PPO

pytest.importorskip("imageio", reason="needs the extra mujoco")

import mujoco

from evorl import CEM, CEMRL, PBT, TD3, Evolution, MLPPolicy, OnPolicy, OpenES, Vmapped
from evorl.envs import check_env, render
from evorl.envs.bodies import suppress_warnings
from evorl.envs.mujoco import MuJoCo
from evorl.errors import OptionError
from evorl.priors import LogUniform
from evorl.training.fit import fit
from evorl.training.progress import Budget
from evorl.training.records.checkpoint import Checkpoints
from tests.conftest import leaves_equal

STATE = mujoco.mjtState.mjSTATE_INTEGRATION
SMALL = {"num_envs": 4, "num_steps": 4, "num_epochs": 1, "batch_size": 8, "eval_episodes": 2}
OPTIONS = {
    "Ant-v5": {"contact_force_range": (-0.5, 2.0), "main_body": "front_left_leg", "healthy_z_range": (0.5, 0.9)},
    "HalfCheetah-v5": {"exclude_current_positions_from_observation": False, "frame_skip": 2},
    "Hopper-v5": {"terminate_when_unhealthy": False, "healthy_state_range": (-2.0, 2.0)},
    "Humanoid-v5": {"include_cinert_in_observation": False, "contact_cost_weight": 1e-3},
    "HumanoidStandup-v5": {"uph_cost_weight": 2, "impact_cost_weight": 1e-3, "include_cvel_in_observation": False},
    "InvertedDoublePendulum-v5": {"healthy_reward": 5.0, "reset_noise_scale": 0.3},
    "InvertedPendulum-v5": {"reset_noise_scale": 0.1},
    "Pusher-v5": {"reward_near_weight": 2.0, "reward_dist_weight": 0.3},
    "Reacher-v5": {"reward_control_weight": 0.1},
    "Swimmer-v5": {"ctrl_cost_weight": 0.1},
    "Walker2d-v5": {"healthy_angle_range": (-0.2, 0.2), "forward_reward_weight": 3.0},
}


def walked(env, key, actions):
    """The first observation, the states and all that is seen of them along actions."""

    @jax.jit
    def walk(key, actions):
        def step(state, action):
            state, timestep = env.step(key, state, action, None)
            return state, (state, timestep)

        state, obs = env.reset(key, None)
        return obs, jax.lax.scan(step, state, actions)[1]

    obs, (states, seen) = walk(key, actions)
    return np.float64(obs), states, seen


def beside_gymnasium(name, options, steps, seed=5):
    """Compares observations and rewards to 1e-6 of their size, from 1 on; ends and MuJoCo's states exactly."""
    env, key = MuJoCo(name, options, threads=1), jax.random.key(seed)
    actions = np.random.default_rng(seed).uniform(*env.action_space.bounds, (steps, *env.action_space.shape))
    actions = actions.astype(np.float32)
    obs, states, seen = walked(env, key, actions)
    high, low = map(int, jax.random.bits(key, (2,), jnp.uint32))
    with suppress_warnings(mujoco):
        theirs = gymnasium.make(name, **options).unwrapped
    close = {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(obs, theirs.reset(seed=high << 32 | low)[0], **close)
    numbers, own = np.asarray(states.bits).view(np.float64), np.empty(mujoco.mj_stateSize(theirs.model, STATE))
    for i, action in enumerate(actions):
        obs, reward, terminated, _, _ = theirs.step(action)
        np.testing.assert_allclose(np.float64(seen.obs[i]), obs, **close)
        np.testing.assert_allclose(float(seen.reward[i]), reward, **close)
        assert bool(seen.terminated[i]) == terminated
        mujoco.mj_getState(theirs.model, theirs.data, own, STATE)
        np.testing.assert_array_equal(numbers[i, : len(own)], own)
    return seen


def test_cheetah_and_ant_are_gymnasiums():
    assert MuJoCo("HalfCheetah-v5").reset(jax.random.key(0), ())[0].bits.shape == (2 * 91,)
    beside_gymnasium("HalfCheetah-v5", {}, 40)
    seen = beside_gymnasium("Ant-v5", OPTIONS["Ant-v5"], 40)
    assert 0 < seen.terminated.sum() < 40


@pytest.mark.program
@pytest.mark.parametrize("name", MuJoCo.names())
def test_each_task_is_gymnasiums(name):
    for options in ({}, OPTIONS[name]):
        for seed in (5, 6):
            beside_gymnasium(name, options, 1000, seed)


def test_rows_threads_and_copies_change_nothing(key):
    """Of a batch of 3 times 7, by two threads, each row is what it is alone, bit for bit, also when gone back to."""
    env, two = (MuJoCo("Walker2d-v5", threads=n) for n in (1, 2))
    keys = jax.random.split(key, (3, 7))
    actions = np.random.default_rng(0).uniform(-1, 1, (3, 7, 6)).astype(np.float32)

    def begun(env):
        both = jax.vmap(jax.vmap(env.reset, (0, None)), (0, None))(keys, ())
        step = jax.vmap(jax.vmap(env.step, (None, 0, 0, None)), (None, 0, 0, None))
        return both, step(key, both[0], actions, None)

    start, after = jax.jit(lambda: begun(two))()
    assert leaves_equal((start, after), jax.jit(lambda: begun(env))())
    for at in ((0, 0), (2, 6)):
        state, _ = jax.jit(env.reset)(keys[at], ())
        for _ in range(2):
            found = jax.jit(env.step)(key, state, actions[at], ())
            assert leaves_equal(found, jax.tree.map(lambda x, at=at: x[at], after))


def test_one_call_for_all_rows(key):
    env, calls = MuJoCo("InvertedPendulum-v5", threads=1), []
    host = env._engine.step
    env._engine.step = lambda states, action: calls.append(len(states)) or host(states, action)
    state, _ = env.reset(key, None)
    many = jax.vmap(jax.vmap(env.step, (0, None, None, None)), (None, None, 0, None))
    jax.block_until_ready(jax.jit(many)(jax.random.split(key, 3), state, np.zeros((5, 1), np.float32), None))
    assert calls == [5]


@pytest.mark.program
def test_it_is_an_environment():
    check_env(MuJoCo("InvertedPendulum-v5", max_episode_steps=40), episodes=3)
    check_env(MuJoCo("Hopper-v5", {"healthy_z_range": [0.8, 2.0]}, max_episode_steps=20), episodes=2)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: MuJoCo("HalfCheeta-v5"), "unknown task of Gymnasium's MuJoCo HalfCheeta-v5; did you mean HalfCheetah-v5"),
    (lambda: MuJoCo("Ant-v5", {"ctrl_cost": 1}), "unknown option of Ant-v5 ctrl_cost; did you mean ctrl_cost_weight"),
    (lambda: MuJoCo("Ant-v5", {"xml_file": "none.xml"}), "Gymnasium's Ant-v5 raises .*none.xml does not exist"),
    (lambda: MuJoCo("Ant-v5", threads=-1), "threads=-1: must not be negative"),
])  # fmt: skip
def test_mistakes_are_told_in_a_line(make, message):
    with pytest.raises(OptionError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_it_is_drawn(key, tmp_path):
    env = MuJoCo("Hopper-v5")
    state, _ = env.reset(key, None)
    paths = render.save_episode(env, [state, state], tmp_path)
    assert paths[0].name == "viewer.html"
    assert "Hopper-v5" in paths[0].read_text(encoding="utf-8")


ENV = MuJoCo("InvertedPendulum-v5", threads=2, max_episode_steps=6)
TD3_AGENT = TD3(hidden=(8, 8))
LEARNER = OnPolicy(ENV, PPO(hidden=(8,)), **SMALL)
SEARCHED = replace(LEARNER, agent=PPO(hidden=(8,), learning_rate=LogUniform(1e-4, 1e-2)))


@pytest.mark.program
def test_a_run_goes_on_from_a_checkpoint_bit_by_bit(tmp_path):
    """Two seeds, side by side."""
    settings = {"evaluations": 1, "num_seeds": 2, "vectorized": True}
    at_once = fit(LEARNER, 0, Budget(iterations=4), **settings)
    with closing(Checkpoints(tmp_path)) as first:
        fit(LEARNER, 0, Budget(iterations=2), checkpoints=first, **settings)
    with closing(Checkpoints(tmp_path)) as again:
        resumed = fit(LEARNER, 0, Budget(iterations=4), checkpoints=again, **settings)
    assert leaves_equal(at_once.state, resumed.state)
    assert not leaves_equal(*(jax.tree.map(lambda x, i=i: x[i], at_once.state.envs.env_state) for i in range(2)))


POLICY = MLPPolicy(hidden=(8,))
SIZES = {"batch_size": 8, "capacity": 64, "random_steps": 12, "eval_episodes": 2, "scan_length": 3}


@pytest.mark.program
@pytest.mark.parametrize("workflow", [
    Evolution(ENV, POLICY, OpenES(4), eval_episodes=2),
    CEMRL(ENV, TD3_AGENT, CEM(4), min_updates=2, max_updates=3, **SIZES),
    PBT(Vmapped(SEARCHED, 2), steps_per_generation=2, search=("learning_rate",)),
], ids=["openes", "cem_rl", "pbt"])  # fmt: skip
def test_it_trains(workflow):
    training = fit(workflow, budget=Budget(iterations=2), evaluations=1)
    assert 1 <= training.rows[-1]["return"] <= 6
