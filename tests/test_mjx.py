"""Gymnasium's MuJoCo tasks on MJX, beside Gymnasium's own and beside MuJoCo's C engine."""

import importlib
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evorl.agents import PPO

pytest.importorskip("imageio", reason="needs the extra mujoco")

from evorl import Evolution, MLPPolicy, OnPolicy, OpenES
from evorl.envs import check_env, render
from evorl.envs.bodies import suppress_warnings
from evorl.envs.mujoco import MJX, MuJoCo
from evorl.envs.mujoco.engine import make_env, mujoco
from evorl.envs.mujoco.initial_states import sample_initial_state
from evorl.envs.mujoco.mjx import align_contact_frames, import_mjx
from evorl.envs.mujoco.tasks import TASKS, StepQuantities
from evorl.errors import OptionError
from evorl.training.fit import fit
from evorl.training.progress import Budget
from tests.test_mujoco import OPTIONS

SCRIPTS = Path(__file__).parents[1] / "scripts" / "trust"


@pytest.mark.parametrize("name", MJX.names())
def test_one_equation_serves_numpy_and_jax(name):
    env, task, rng = make_env(name, OPTIONS[name]), TASKS[name], np.random.default_rng(0)
    sizes = {"qpos": env.model.nq, "qvel": env.model.nv}
    shapes = {name: (size,) for name, size in sizes.items()} | {
        name: getattr(env.data, name).shape for name in task.reads
    }
    seen = {name: rng.uniform(-2, 2, (20, *shape)).astype(np.float32) for name, shape in shapes.items()}
    action, velocity = rng.uniform(-1, 1, (20, env.model.nu)).astype(np.float32), rng.uniform(-1, 1, 20)

    def see(seen, action, velocity):
        track = [task.tracked_position(env, seen)] if task.tracked_position else []
        return task.obs(env, seen), *task.outcome(env, StepQuantities(seen, action, velocity)), track

    doubles = jax.tree.map(np.float64, (seen, action, velocity))
    ours, theirs = jax.jit(see)(seen, action, velocity), see(*doubles)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MJX.names())
def test_initial_states_are_distributed_as_gymnasiums(name):
    """Each position and velocity by a Kolmogorov-Smirnov test, and by its bounds."""
    env = make_env(name, {})
    keys = jax.random.split(jax.random.key(0), 2000)
    ours = np.concatenate(jax.jit(jax.vmap(lambda key: sample_initial_state(name, env, key)))(keys), 1)
    theirs = []
    for seed in range(400):
        env.reset(seed=seed)
        theirs.append(np.concatenate([env.data.qpos, env.data.qvel]))
    for mine, its in zip(ours.T, np.array(theirs).T, strict=True):
        wide = np.ptp(its)
        assert mine.min() >= its.min() - 0.5 * wide - 1e-6
        assert mine.max() <= its.max() + 0.5 * wide + 1e-6
        if wide:
            test: Any = stats.ks_2samp(mine, its)
            assert test.pvalue > 1e-3
    if name == "Reacher-v5":
        assert 0.19 < np.linalg.norm(ours[:, 2:4], axis=1).max() < 0.2
    elif name == "Pusher-v5":
        assert 0.17 < np.linalg.norm(ours[:, 7:9], axis=1).min() < 0.18
        assert (np.abs(ours[:, 7:9]) < (0.3, 0.2)).all()


def test_friction_directions_are_those_of_the_c_engine():
    """Ant's legs, at every angle to the floor. MJX alone takes others for legs close to upright."""
    env, mjx = MJX("Ant-v5"), import_mjx()
    model, rng = env._system.env.model, np.random.default_rng(0)

    @jax.jit
    def collide(qpos):
        data = mjx.collision(env._system.model, mjx.kinematics(env._system.model, env._system.data.replace(qpos=qpos)))
        return data._impl.contact.dist, data._impl.contact.frame, data._impl.contact.geom

    data, upright = mujoco.MjData(model), 0
    with align_contact_frames():
        for _ in range(20):
            data.qpos[:] = env._system.env.init_qpos + rng.uniform(-1, 1, model.nq)
            data.qpos[2] = 0.3
            data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
            mujoco.mj_kinematics(model, data)
            mujoco.mj_collision(model, data)
            dist, frame, geom = map(np.asarray, collide(jnp.float32(data.qpos)))
            for contact in data.contact:
                same = (geom == contact.geom).all(1)
                i = np.argmin(np.where(same, np.abs(dist - contact.dist), np.inf))
                np.testing.assert_allclose(frame[i].ravel(), contact.frame, atol=2e-5)
                upright += abs(data.geom_xmat[contact.geom[1]][8]) > 0.87
    assert upright


@pytest.mark.parametrize(("make", "message"), [
    (lambda xml: MJX("HalfCheeta-v5"), "HalfCheeta-v5; did you mean HalfCheetah-v5.*--list env=mjx"),
    (lambda xml: MJX("Ant-v5", {"ctrl_cost": 1}), "unknown option of Ant-v5 ctrl_cost; did you mean ctrl_cost_weight"),
    (lambda xml: MJX("Ant-v5", solver="newton"), "solver=newton: must be one of exact, fast"),
    (lambda xml: MJX("Hopper-v5", impl="wrap"), "impl=wrap: must be one of jax, warp"),
    (lambda xml: MJX("Ant-v5", impl="warp"), "impl=warp: must be jax for Ant-v5: MJX-Warp does not compute cfrc_ext"),
    (lambda xml: MJX("Ant-v5", max_episode_steps=-1), "max_episode_steps=-1: must not be negative"),
    (lambda xml: MJX("Hopper-v5", {"xml_file": xml("RK4", "implicit")}),
     r"MJX cannot simulate this model \(integrator IMPLICIT; allowed: EULER, RK4, .*env=mujoco/Hopper-v5 can"),
    (lambda xml: MJX("Hopper-v5", {"xml_file": xml('"RK4"', '"RK4" noslip_iterations="3"')}),
     r"MJX cannot simulate this model \(noslip_iterations\); env=mujoco/Hopper-v5 can"),
    (lambda xml: MJX("Hopper-v5", {"xml_file": xml('"RK4"', '"RK4" cone="elliptic"')}),
     r"MJX cannot simulate this model \(condim=1 with ConeType.ELLIPTIC not implemented"),
])  # fmt: skip
def test_mistakes_are_told_in_a_line(make, message, tmp_path):
    def xml(old, new):
        its = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "hopper.xml"
        (tmp_path / "mine.xml").write_text(its.read_text().replace(old, new))
        return str(tmp_path / "mine.xml")

    with pytest.raises(OptionError, match=message) as error:
        make(xml)
    assert "\n" not in str(error.value)


def test_solvers_and_limits():
    env = MJX("Humanoid-v5")
    assert env.max_episode_steps == 1000
    for solver, iterations, searches in (("exact", 50, 50), ("fast", 4, 8)):
        option = MJX("Humanoid-v5", solver=solver)._system.model.opt
        assert (option.solver.name, option.iterations, option.ls_iterations) == ("NEWTON", iterations, searches)
        assert float(option.tolerance) == pytest.approx(1e-8)


def test_it_is_drawn(key, tmp_path):
    env = MJX("InvertedPendulum-v5")
    state, obs = env.reset(key, None)
    np.testing.assert_array_equal(obs, np.concatenate([state.qpos, state.qvel]))
    paths = render.save_episode(env, [state, state], tmp_path)
    assert paths[0].name == "viewer.html"
    assert "InvertedPendulum-v5" in paths[0].read_text(encoding="utf-8")


@pytest.mark.program
@pytest.mark.parametrize("name", ["InvertedDoublePendulum-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5"])
def test_the_first_observation_is_gymnasiums(name, key):
    """From the same positions and velocities: forces of the actuators and of contacts are 0."""
    env = MJX(name)
    state, obs = jax.jit(env.reset)(key, None)
    with suppress_warnings(mujoco):
        theirs: Any = gymnasium.make(name).unwrapped
    theirs.reset(seed=0)
    theirs.set_state(np.float64(state.qpos), np.float64(state.qvel))
    its = theirs._get_obs()
    assert obs.shape == env.observation_space.shape
    np.testing.assert_allclose(obs, its, rtol=1e-4, atol=1e-4)


@pytest.mark.program
@pytest.mark.parametrize(
    ("name", "options"), [("HalfCheetah-v5", {}), ("Hopper-v5", {}), ("Ant-v5", OPTIONS["Ant-v5"])]
)
def test_a_step_is_the_c_engines(name, options, monkeypatch):
    """The other tasks are measured by scripts/trust/mjx.py."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    trust = importlib.import_module("mjx")
    given = trust.step_in_gymnasium(name, 100, options)
    obs, rewards, terminated = trust.step_on_mjx(MJX(name, options), given)
    assert 20 < given.contact.sum() < 80
    for errors in trust.measure_errors(given, obs, rewards):
        assert errors[~given.contact].max() < 1e-3
        assert np.mean(errors[given.contact] < 1e-2) >= 0.98
    assert np.mean(terminated == given.terminated) >= 0.99
    if name != "HalfCheetah-v5":
        assert given.terminated.any()


PENDULUM = MJX("InvertedPendulum-v5", max_episode_steps=6)


@pytest.mark.program
def test_it_is_an_environment():
    check_env(PENDULUM, episodes=3)
    assert PENDULUM.action_space == MuJoCo("InvertedPendulum-v5").action_space
    assert PENDULUM.observation_space == MuJoCo("InvertedPendulum-v5").observation_space


@pytest.mark.program
@pytest.mark.parametrize("workflow", [
    OnPolicy(PENDULUM, PPO(hidden=(8,)), num_envs=4, num_steps=4, num_epochs=1, batch_size=8, eval_episodes=2),
    Evolution(PENDULUM, MLPPolicy(hidden=(8,)), OpenES(4), eval_episodes=2),
], ids=["ppo", "openes"])  # fmt: skip
def test_it_trains(workflow):
    training = fit(workflow, budget=Budget(iterations=2), evaluations=1)
    assert 1 <= training.rows[-1]["return"] <= 6
