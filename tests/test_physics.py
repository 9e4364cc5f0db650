import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import envs
from evorl.envs.physics import Physics, PhysicsEditor
from evorl.envs.suites.brax import Brax, BraxScales
from evorl.envs.suites.brax import _suppress_output as quiet
from evorl.envs.suites.gymnax import DERIVED_PARAMS, POSITIVE_PARAMS, Gymnax
from evorl.envs.wrappers import RewardTransform, unwrap
from evorl.errors import OptionError
from evorl.priors import LogUniform, Uniform
from evorl.types import EditableLevelEnv, EditorEnv, HasStateMetrics, LevelEnv, MutableLevelEnv, SolvableLevelEnv

CARTPOLE = Gymnax("CartPole-v1", max_episode_steps=30)
POLES = Physics(CARTPOLE, {"masspole": LogUniform(0.05, 10), "length": LogUniform(0.05, 10)}, solved_return=25.0)


def played(env, start, actions):
    """What is seen of all steps with these actions, as time steps."""

    def step(state, action):
        return env.step(jax.random.key(0), state, action, env.default_params)

    return jax.jit(lambda start: jax.lax.scan(step, start, actions)[1])(start)


def test_cartpole_in_the_middle_is_gymnaxs_own_with_params_set_by_hand(key):
    """By the geometric mean of 0.05 and 10, with the two numbers that follow from it, in gymnax itself."""
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    middle = math.sqrt(0.05 * 10)
    params = params.replace(length=middle, masspole=middle, total_mass=1.0 + middle, polemass_length=middle * middle)
    ours = POLES.make_inner_params(jnp.array([0.5, 0.5]))
    for field in dataclasses.fields(params):
        if field.name != "max_steps_in_episode":
            np.testing.assert_allclose(getattr(ours, field.name), getattr(params, field.name), rtol=1e-6)
    actions = jax.random.randint(key, (12,), 0, 2)

    def step(state, action):
        obs, state, *_ = env.step_env(key, state, action, params)
        return state, obs

    obs, theirs = env.reset_env(key, params)
    expected = jax.lax.scan(step, theirs, actions)[1]
    state, first = POLES.reset_to_level(key, jnp.array([0.5, 0.5]))
    np.testing.assert_array_equal(first, obs)
    np.testing.assert_allclose(played(POLES, state, actions).obs, expected, rtol=1e-5, atol=1e-6)
    default = CARTPOLE.reset(key, CARTPOLE.default_params)[0]
    assert not np.allclose(played(CARTPOLE, default, actions).obs, expected, atol=1e-3)


def test_what_follows_from_defaults_is_gymnaxs_default():
    for name, derived in DERIVED_PARAMS.items():
        env = Gymnax(name)
        params = env.make_params({})
        for field in derived:
            assert getattr(params, field) == pytest.approx(getattr(env.default_params, field))


def test_acrobat_of_other_links_has_its_centres_of_mass_in_their_middle():
    env = Physics(Gymnax("Acrobot-v1"), {"link_length_1": Uniform(1, 3), "link_length_2": Uniform(2, 6)})
    params = env.make_inner_params(jnp.array([0.5, 0.25]))
    given = params.link_length_1, params.link_com_pos_1, params.link_length_2, params.link_com_pos_2
    np.testing.assert_allclose(given, [2, 1, 3, 1.5])


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("CartPole-v1", {"gravity", "masscart", "masspole", "length", "force_mag", "tau"}),
        ("Pendulum-v1", {"dt", "g", "m", "l"}),
        ("MountainCar-v0", {"goal_position", "goal_velocity", "force", "gravity"}),
        (
            "Acrobot-v1",
            {"dt", "link_length_1", "link_length_2", "link_mass_1", "link_mass_2", "link_moi", "torque_noise_max"},
        ),
    ],
)
def test_numbers_that_can_be_other_are_no_bounds_of_a_space_and_follow_from_none(name, numbers):
    assert set(Gymnax(name).physics) == numbers


@pytest.mark.parametrize("name", sorted(POSITIVE_PARAMS))
def test_what_must_be_above_0_is_among_the_numbers_of_physics(name):
    assert set(POSITIVE_PARAMS[name]) <= set(Gymnax(name).physics)


def test_it_is_leveled_mutable_editable_and_judged():
    for protocol in (LevelEnv, MutableLevelEnv, EditableLevelEnv, SolvableLevelEnv, HasStateMetrics):
        assert isinstance(POLES, protocol)
    assert isinstance(POLES.make_editor(), EditorEnv)
    assert unwrap(POLES) is CARTPOLE
    assert list(POLES.ranges) == ["length", "masspole"]
    np.testing.assert_array_equal(POLES.is_solved(jnp.array([24.0, 25.0, 30.0])), [False, True, True])
    assert not Physics(CARTPOLE, {"length": Uniform(1, 2)}).is_solved(jnp.float32(1e9))


def test_levels_are_uniform_points_of_the_cube(key):
    from scipy import stats

    levels = jax.vmap(POLES.sample_level, (0, None))(jax.random.split(key, 2000), ())
    assert levels.shape == (2000, 2)
    for column in np.asarray(levels).T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    state, _ = POLES.reset(key, None)
    assert POLES.is_same_level(POLES.get_level(state), POLES.get_level(POLES.reset_to_level(key, state.level)[0]))
    assert not POLES.is_same_level(levels[0], jnp.nextafter(levels[0], jnp.float32(1)))
    one = jnp.array([0.25, 0.75])
    described = POLES.state_metrics(POLES.reset_to_level(key, one)[0])
    assert described.keys() == {"physics/length", "physics/masspole"}
    np.testing.assert_allclose(described["physics/length"], 0.05 * 200**0.25, rtol=1e-5)
    np.testing.assert_allclose(POLES.encode_level(POLES.decode_level(one)), one, rtol=1e-5)


@pytest.mark.parametrize("num_edits", [1, 4])
def test_a_mutation_is_a_reflected_walk_of_normal_steps(key, num_edits):
    """The same law as that of a walk in NumPy, which is reflected at each step (Kolmogorov-Smirnov)."""
    from scipy import stats

    parent = np.array([0.03, 0.5])
    mutated = jax.jit(jax.vmap(lambda key: POLES.mutate_level(key, jnp.float32(parent), num_edits)))
    children = mutated(jax.random.split(key, 4000))
    rng, walk = np.random.default_rng(0), np.tile(parent, (4000, 1))
    for _ in range(num_edits):
        walk = np.abs(walk + rng.normal(0, 0.1, walk.shape))
        walk = np.where(walk > 1, 2 - walk, walk)
    for found, expected in zip(np.asarray(children).T, walk.T, strict=True):
        assert (found >= 0).all()
        assert (found <= 1).all()
        assert stats.ks_2samp(found, expected).pvalue > 1e-3
    np.testing.assert_array_equal(POLES.mutate_level(key, jnp.float32(parent), 0), np.float32(parent))


@pytest.mark.program
def test_a_teacher_chooses_one_of_21_values_of_each_number(key):
    editor = POLES.make_editor()
    assert (editor.action_space.n, editor.max_episode_steps) == (21, 2)
    state, first = editor.reset(key, None)
    state, second = editor.step(key, state, jnp.int32(20), None)
    assert not second.terminated
    state, last = editor.step(jax.random.key(7), state, jnp.int32(3), None)
    assert last.terminated
    assert (float(second.reward), float(last.reward)) == (0.0, 0.0)
    np.testing.assert_allclose(editor.get_level(state), [1.0, 0.15])
    np.testing.assert_array_equal([first["step"], second.obs["step"], last.obs["step"]], [0, 1, 2])
    np.testing.assert_allclose([first["level"], second.obs["level"]], [[0, 0], [1, 0]])
    assert first["random"].shape == (50,)
    assert len(np.unique([second.obs["random"], last.obs["random"]])) == 100
    template = POLES.sample_level(key, None)
    assert (editor.get_level(state).shape, editor.get_level(state).dtype) == (template.shape, template.dtype)
    envs.check_env(editor, episodes=2)


@pytest.mark.program
def test_it_is_an_environment_as_evorl_needs_it():
    envs.check_env(POLES, episodes=2)
    envs.check_env(RewardTransform(POLES, scale=0.5), episodes=2)


@pytest.mark.program
def test_refuses_what_cannot_be():
    half = Uniform(0.5, 2)
    with pytest.raises(OptionError, match="unknown physical parameter lenght; did you mean length"):
        Physics(CARTPOLE, {"lenght": half})
    with pytest.raises(OptionError, match="unknown physical parameter total_mass"):
        Physics(CARTPOLE, {"total_mass": half})
    with pytest.raises(OptionError, match="unknown physical parameter weight; allowed: friction, gravity, mass"):
        Physics(Brax("hopper"), {"weight": half})
    with pytest.raises(OptionError, match=r"ranges={}: must name at least one of .*gravity"):
        Physics(CARTPOLE, {})
    with pytest.raises(OptionError, match="inner=Physics: has no physical parameters to vary"):
        Physics(POLES, {"length": half})
    for env, name in ((CARTPOLE, "masspole"), (CARTPOLE, "length"), (Brax("hopper"), "mass")):
        with pytest.raises(OptionError, match=rf"^ranges.{name}=Uniform\(low=0, high=1\): must be above 0$"):
            Physics(env, {name: Uniform(0, 1)})
    assert Physics(CARTPOLE, {"gravity": Uniform(-1, 1)}).ranges
    with pytest.raises(OptionError, match=r"^high=1: must be above low, 1$"):
        Physics(CARTPOLE, {"length": LogUniform(1, 1)})
    with pytest.raises(OptionError, match=r"^low=-1: must be above 0 for a logarithmic scale$"):
        Physics(CARTPOLE, {"length": LogUniform(-1, 1)})
    with pytest.raises(OptionError, match="num_bins=1"):
        PhysicsEditor(POLES, num_bins=1)


def by_hand(name, gravity=1.0, mass=1.0, friction=1.0):
    """The system of a Brax environment that MuJoCo itself has made of a model with other numbers."""
    import copy

    import mujoco

    with quiet():
        from brax.io import mjcf

        model = copy.deepcopy(Brax(name).env.sys.mj_model)
        model.opt.gravity[:] *= gravity
        model.body_mass[:] *= mass
        model.body_inertia[:] *= mass
        model.geom_friction[:] *= friction
        mujoco.mj_setConst(model, mujoco.MjData(model))
        return mjcf.load_model(model)


@pytest.mark.program
def test_brax_is_scaled_as_mujoco_scales_its_model():
    """All that moves; what constraints weigh by, which MuJoCo averages over a posture, within two fifths."""
    from evorl.envs.suites.brax import scale_system
    from evorl.envs.trial import leaves_by_name, to_numpy

    for name in ("hopper", "ant"):
        found = leaves_by_name(scale_system(Brax(name).env.sys, BraxScales(3.0, 2.0, 0.5)))
        wanted = leaves_by_name(by_hand(name, gravity=3.0, mass=2.0, friction=0.5))
        for path, value in wanted.items():
            if path in ("dof_M0", "actuator_acc0"):  # which only muscles need
                continue
            tolerance = 0.4 if "invweight" in path else 1e-5
            np.testing.assert_allclose(
                to_numpy(found[path]), to_numpy(value), tolerance, 1e-6, err_msg=f"{name} {path}"
            )


@pytest.mark.program
@pytest.mark.parametrize("number", ["mass", "gravity", "friction"])
def test_braxs_numbers_take_effect_as_in_a_system_replaced_by_hand(number, key):
    """Hopper falls and slides as in an environment whose system was made by MuJoCo, and not as in its own."""
    import copy

    inner = Brax("hopper", max_episode_steps=20)
    env = Physics(inner, {number: Uniform(0.5, 1.5)})
    theirs = copy.copy(inner.env)
    theirs.sys = by_hand("hopper", **{number: 0.6})
    actions = jnp.tile(jnp.array([0.3, -0.9, 0.7]), (20, 1))

    def raw(state, action):
        state = theirs.step(state, action)
        return state, state.obs

    level = env.encode_level({number: 0.6})
    np.testing.assert_allclose(level, [0.1], rtol=1e-5)
    found = np.asarray(played(env, env.reset_to_level(key, level)[0], actions).obs)
    own = np.asarray(played(inner, inner.reset(key, None)[0], actions).obs)
    expected = np.asarray(jax.jit(lambda: jax.lax.scan(raw, theirs.reset(key), actions)[1])())
    off, effect = np.abs(found - expected).max(), np.abs(own - expected).max()
    assert off < 0.05 * effect, (off, effect)
