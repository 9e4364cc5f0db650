"""What is kept of an episode in Brax, against Brax's own state and metrics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.descriptors import FeetContact, FinalPosition, find_pipeline_state
from evorl.envs.sanity import Bandit
from evorl.envs.suites.brax import Brax
from evorl.envs.wrappers import RewardTransform
from evorl.errors import OptionError
from evorl.training.configuration import config, parts
from evorl.training.episodes import play_episodes
from evorl.types import Env
from tests.test_brax import own

STEPS = 12
DEBUG = {"debug": True}


def random_play(env):
    """What one episode of random actions is known by."""

    def policy(obs, memory, keys):
        return jax.vmap(env.action_space.sample)(keys), memory, {}

    return play_episodes(env, env.default_params, policy, None, 2, seed=0)


@pytest.mark.program
@pytest.mark.parametrize("name", ["hopper", "ant"])
def test_metrics_positions_and_contacts_are_braxs_own(name, key):
    """Step by step along one trajectory; and of episodes of random actions, where a hopper's foot is up at times."""
    metrics = {"x_velocity": "mean", "x_position": "last", "reward_ctrl": "sum"}
    inner = Brax(name, "spring", STEPS, DEBUG | {"terminate_when_unhealthy": False}, metrics)
    env = FeetContact(RewardTransform(FinalPosition(inner)))
    assert env.episode_info == metrics | {"position": "last", "feet_contact": "mean"}
    theirs = own(name, backend="spring", debug=True, terminate_when_unhealthy=False)
    actions = jax.random.uniform(key, (STEPS, theirs.action_size), minval=-1, maxval=1)

    def ours(state, action):
        state, timestep = env.step(key, state, action, None)
        return state, timestep.info

    def raw(state, action):
        state = theirs.step(state, action)
        physics = state.pipeline_state
        touching = physics.contact.dist <= 0
        return state, (state.metrics, physics.x.pos[0], touching, physics.contact.link_idx[1])

    state, _ = jax.jit(env.reset)(key, ())
    end, info = jax.jit(lambda s: jax.lax.scan(ours, s, actions))(state)
    start = jax.jit(theirs.reset)(key)
    start = jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, start)
    after, (told, torso, touching, links) = jax.jit(lambda s: jax.lax.scan(raw, s, actions))(start)
    for one in metrics:
        np.testing.assert_allclose(info[one], told[one], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(info["position"], torso[:, :2], rtol=1e-4, atol=1e-5)
    feet = [3] if name == "hopper" else [2, 4, 6, 8]
    expected = np.stack([(np.asarray(touching) & (np.asarray(links) == foot)).any(1) for foot in feet], 1)
    np.testing.assert_array_equal(info["feet_contact"], expected)
    assert env.foot_links == tuple(feet)
    np.testing.assert_allclose(find_pipeline_state(end).x.pos, after.pipeline_state.x.pos, rtol=1e-4, atol=1e-5)
    if name == "hopper":
        means = random_play(env).episode_means
        assert ((means["feet_contact"] > 0) & (means["feet_contact"] < 1)).any()
        speed = (means["position"][:, 0] - float(theirs.sys.init_q[0])) / (STEPS * theirs.dt)
        np.testing.assert_allclose(means["x_velocity"], speed, atol=0.06)  # it begins within 0.005 m of there


@pytest.mark.program
def test_feet_are_found_by_name_and_may_be_given():
    found = {name: FeetContact(Brax(name, "spring", options=DEBUG)).foot_links for name in ("walker2d", "halfcheetah")}
    assert found == {"walker2d": (3, 6), "halfcheetah": (3, 6)}
    assert FeetContact(Brax("hopper", "spring", options=DEBUG), (2, 3)).foot_links == (2, 3)


def stepped(env):
    state, _ = jax.eval_shape(env.reset, jax.random.key(0), None)
    action = jax.ShapeDtypeStruct(env.action_space.shape, jnp.float32)
    return jax.eval_shape(env.step, jax.random.key(0), state, action, None)


WRONG = {
    r"metrics.x_velocity=most: must be one of sum, mean, last": lambda: Brax("hopper", metrics={"x_velocity": "most"}),
    r"unknown metric of Brax's hopper x_velocty; did you mean x_velocity": lambda: stepped(
        Brax("hopper", "spring", metrics={"x_velocty": "mean"})
    ),
    r"env: FinalPosition needs a Brax environment, not Bandit": lambda: FinalPosition(Bandit()),
    r"options.debug=None: FeetContact needs contacts, which Brax returns only with": lambda: FeetContact(
        Brax("hopper")
    ),
    r"backend=mjx: is not supported by FeetContact": lambda: FeetContact(Brax("hopper", "mjx", options=DEBUG)),
    r"feet=\[\]: must be indices of the 2 links of inverted": lambda: (
        FeetContact(Brax("inverted_pendulum", "spring", options=DEBUG)).foot_links
    ),
    r"feet=\[9\]: must be indices of the 4 links of hopper, starting at 0": lambda: (
        FeetContact(Brax("hopper", "spring", options=DEBUG), [9]).foot_links
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_mistakes_are_one_line_that_teaches(message):
    with pytest.raises(OptionError, match=message):
        WRONG[message]()


WRAPPERS = [(["env=feet", "env@env.inner=ant"], FeetContact), (["env=position"], FinalPosition)]


@pytest.mark.parametrize(("overrides", "wrapper"), WRAPPERS)
def test_the_wrappers_compose(overrides, wrapper):
    env = parts.instantiate(
        config.to_plain_data(config.compose_config([*overrides, "env.inner.backend=spring"]))["env"], "env", Env
    )
    assert isinstance(env, wrapper)
    assert env.inner.name == "ant"
