import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.suites import brax as adapter
from evorl.envs.suites.brax import BACKENDS, Brax
from evorl.errors import OptionError
from evorl.training.configuration import config, config_file, parts

ENVIRONMENTS = [
    "ant", "fast", "halfcheetah", "hopper", "humanoid", "humanoidstandup", "inverted_double_pendulum",
    "inverted_pendulum", "pusher", "reacher", "swimmer", "walker2d",
]  # fmt: skip


def own(name, **options):
    """The same environment made by Brax itself."""
    with adapter._suppress_output():
        from brax import envs

        adapter.patch_fluid()
        return envs.get_environment(name, **options)


@pytest.mark.program
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_is_brax_by_shape(name):
    env = Brax(name)
    state, obs = jax.eval_shape(env.reset, jax.random.key(0), None)
    action = jax.ShapeDtypeStruct(env.action_space.shape, jnp.float32)
    if name == "fast":  # its action is any array
        action = jax.ShapeDtypeStruct((1,), jnp.float32)
    after, timestep = jax.eval_shape(env.step, jax.random.key(0), state, action, None)
    assert obs.shape == env.observation_space.shape == timestep.obs.shape
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert (timestep.reward.shape, timestep.reward.dtype) == ((), jnp.float32)
    assert timestep.terminated.dtype == timestep.truncated.dtype == bool


@pytest.mark.program
def test_a_trajectory_equals_braxs_own(key):
    env, theirs = Brax("inverted_pendulum", max_episode_steps=6), own("inverted_pendulum", backend="generalized")
    actions = jax.random.uniform(key, (30, 1), minval=-1, maxval=1)

    def ours(state, action):
        state, timestep = env.step(key, state, action, None)
        return state, timestep

    def raw(state, action):
        state = theirs.step(state.replace(reward=jnp.float32(0)), action)
        return state.replace(reward=jnp.float32(state.reward)), (state.obs, state.done)

    state, obs = jax.jit(env.reset)(key, ())
    _, t = jax.jit(lambda s: jax.lax.scan(ours, s, actions))(state)
    _, (raw_obs, done) = jax.jit(lambda: jax.lax.scan(raw, theirs.reset(key), actions))()
    np.testing.assert_allclose(t.obs, raw_obs, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(t.terminated, done > 0)
    assert t.terminated.any()
    np.testing.assert_array_equal(t.truncated, (np.arange(1, 31) >= 6) & (np.asarray(done) == 0))
    assert not np.allclose(obs, t.obs[0])


@pytest.mark.program
def test_physics_have_full_precision():
    """By default, a GPU rounds the factors of a product to 10 bits."""
    env = Brax("ant", "spring")
    state, _ = jax.eval_shape(env.reset, jax.random.key(0), None)
    action = jax.ShapeDtypeStruct((8,), jnp.float32)
    code = str(jax.make_jaxpr(lambda state, action: env.step(jax.random.key(0), state, action, None))(state, action))
    highest = "precision=(Precision.HIGHEST, Precision.HIGHEST)"
    assert code.count("dot_general") == code.count(highest) > 50


def test_options_are_passed_through():
    assert Brax("ant", options={"terminate_when_unhealthy": False}).env._terminate_when_unhealthy is False
    assert Brax("ant").env._terminate_when_unhealthy is True
    assert hash(Brax("ant", options={"use_contact_forces": False})) is not None


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_is_the_one_asked_for(backend):
    env = Brax("inverted_pendulum", backend)
    assert env.env.backend == backend
    state, _ = jax.eval_shape(env.reset, jax.random.key(0), None)
    jax.eval_shape(env.step, jax.random.key(0), state, jax.ShapeDtypeStruct((1,), jnp.float32), ())


def test_the_fluid_is_mended_only_where_it_is_broken(monkeypatch):
    from brax import fluid

    monkeypatch.setattr(fluid, "jp", jnp)
    adapter.patch_fluid()
    assert fluid.jp is not jnp  # this jax has no a_min
    np.testing.assert_array_equal(fluid.jp.clip(jnp.array([-1.0, 2.0]), a_min=0.0), [0.0, 2.0])
    mended = fluid.jp
    adapter.patch_fluid()
    assert fluid.jp is mended

    class Whole:
        @staticmethod
        def clip(x, a_min=None, a_max=None):
            return jnp.clip(x, a_min, a_max)

    monkeypatch.setattr(fluid, "jp", Whole)
    adapter.patch_fluid()
    assert fluid.jp is Whole


def test_making_an_environment_writes_and_says_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert Brax("walker2d").env.action_size == 6
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_wrong_names_are_refused():
    with pytest.raises(OptionError, match="did you mean hopper"):
        Brax("hoper").env  # noqa: B018
    with pytest.raises(OptionError, match="backend=spriing"):
        Brax("ant", "spriing")


@pytest.fixture
def on_gpu(monkeypatch):
    """Let JAX say that it runs on a GPU."""
    adapter.choose_backend.cache_clear()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    yield
    adapter.choose_backend.cache_clear()


def test_the_default_backend_on_a_cpu_is_generalized(capsys):
    assert Brax("ant").backend == "generalized"
    assert Brax("ant") == Brax("ant", "generalized")
    assert capsys.readouterr().err == ""


def test_the_default_backend_on_a_gpu_is_spring_and_told_once(on_gpu, capsys):
    assert Brax("ant").backend == Brax("ant").backend == "spring"
    told = "env=ant: uses env.backend=spring, because this is a GPU; env.backend=generalized is the default on a CPU\n"
    assert capsys.readouterr().err == told
    assert Brax("ant", "generalized").backend == "generalized"
    assert Brax("swimmer").backend == "generalized"  # it has no other
    assert capsys.readouterr().err == ""


def test_a_saved_configuration_holds_the_backend_that_was_chosen(on_gpu, tmp_path):
    cfg = config.compose_config(["env=ant", "agent=td3"])
    assert cfg.env.backend == "auto"
    config_file.write_config(config.to_savable_data(cfg), tmp_path)
    assert config_file.read_config(tmp_path, "run")["env"]["backend"] == "spring"
    nested = {"inner": {"_target_": "evorl.envs.suites.brax.Brax", "name": "swimmer", "backend": "auto"}}
    assert parts.resolve_auto([nested])[0]["inner"]["backend"] == "generalized"
    other = {"_target_": "evorl.envs.arcade.CartPole", "distributed": "auto"}
    assert parts.resolve_auto(other) == other
