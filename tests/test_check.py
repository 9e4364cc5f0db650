"""evorl.envs.check_env passes what is right, and names the fault and the place of what is not."""

import dataclasses
import itertools
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from evorl import envs
from evorl.envs.sanity import probe
from evorl.envs.suites.brax import Brax
from evorl.envs.suites.gymnax import Gymnax
from evorl.envs.wrappers import FrameStack, RewardTransform
from evorl.errors import EnvError
from evorl.spaces import Box, Dict, Discrete, MultiDiscrete
from evorl.types import TimeStep
from tests.counting import Counting


@struct.dataclass
class State:
    place: Any
    steps: Any


@dataclass(frozen=True)
class Right:
    """A point that is pushed; it is lost beyond 1."""

    max_episode_steps: Any = 5
    fresh_reset: Any = True

    default_params: ClassVar[Any] = {"push": 0.2}
    observation_space: ClassVar[Any] = Dict({"place": Box(-2.0, 2.0, (2,)), "side": Discrete(2)})
    action_space: ClassVar[Any] = MultiDiscrete((3, 3))

    def reset(self, key, params):
        state = State(jax.random.uniform(key, (2,), minval=-0.5, maxval=0.5), jnp.int32(0))
        return state, self.seen(state)

    def seen(self, state):
        return {"place": state.place, "side": (state.place[0] > 0).astype(jnp.int32)}

    def step(self, key, env_state, action, params):
        after = State(env_state.place + params["push"] * (action - 1), env_state.steps + 1)
        lost = (abs(after.place) > 1).any()
        return after, TimeStep(
            self.seen(after), 1 - abs(after.place).sum(), lost, ~lost & (after.steps >= self.max_episode_steps)
        )


RIGHT = {
    "right": Right(),
    "constant": probe.ConstantReward(),
    "seen": probe.ObsDependentReward(continuing=True),
    "late": probe.DelayedReward(),
    "chosen": probe.ActionDependentReward(),
    "choice": probe.ObsActionReward(num_actions=3),
    "counting": Counting(),
    "delayed": RewardTransform(Counting(), 0.5, delay=20),
    "frames": FrameStack(probe.ObsActionReward(num_actions=3), 3),
    "fast": Brax("fast", max_episode_steps=20),
    "box": Gymnax("Pendulum-v1", max_episode_steps=20),
    "discrete": Gymnax("CartPole-v1", max_episode_steps=20),
    "whole": Gymnax("Catch-bsuite"),
}


@pytest.mark.program
@pytest.mark.parametrize("env", RIGHT.values(), ids=RIGHT)
def test_what_is_right_passes(env):
    assert envs.check_env(env, episodes=4) is None


def changed(**of_timestep):
    """Right with fields of its TimeStep replaced by functions of (the time step, the state after it)."""

    class Changed(Right):
        def step(self, key, env_state, action, params):
            after, timestep = super().step(key, env_state, action, params)
            return after, dataclasses.replace(timestep, **{k: f(timestep, after) for k, f in of_timestep.items()})

    return Changed()


class NoStep(Right):
    step: Any = property()


class OtherSpace(Right):
    observation_space = (3,)


class UpsideDown(Right):
    @property
    def observation_space(self):
        return Dict({"place": Box((-2.0, 3.0), 2.0, (2,))})


class Unbounded(Right):
    action_space = Box(-float("inf"), 1.0, (2,))


class Fixed(Right):
    action_space = Box((-1.0, 1.0), 1.0, (2,))


class TextParams(Right):
    default_params: ClassVar = {"push": 0.2, "name": "ice"}


class PythonBranch(Right):
    def step(self, key, env_state, action, params):
        if env_state.place[0] > 0:
            return super().step(key, env_state, action, params)
        return super().step(key, env_state, -action, params)


class NumPy(Right):
    def step(self, key, env_state, action, params):
        return super().step(key, env_state, np.clip(np.asarray(action), 0, 1), params)


class Lost(Right):
    def reset(self, key, params):
        return super().reset(key, params)[0], {"place": jnp.zeros(3)}


class Weak(Right):
    def reset(self, key, params):
        state, obs = super().reset(key, params)
        return state.replace(steps=0, place=state.place.astype(jnp.int32)), obs

    def step(self, key, env_state, action, params):
        after, timestep = super().step(key, env_state, action, params)
        return after.replace(steps=env_state.steps + jnp.int32(1)), timestep


class Pair(Right):
    def step(self, key, env_state, action, params):
        after, timestep = super().step(key, env_state, action, params)
        return after, timestep.obs, timestep.reward


TRACES = itertools.count()


class GlobalNoise(Right):
    def step(self, key, env_state, action, params):
        after, timestep = super().step(key, env_state, action, params)
        return after, timestep.replace(reward=timestep.reward + float(next(TRACES)))


class Remembers(Right):
    def reset(self, key, params):
        object.__setattr__(self, "resets", getattr(self, "resets", 0) + 1)
        return super().reset(key, params)


class Leaks(Right):
    def reset(self, key, params):
        state, obs = super().reset(key, params)
        object.__setattr__(self, "start", state)
        return state, obs

    def step(self, key, env_state, action, params):
        return super().step(key, self.start, action, params)


class NoParams(Right):
    def reset(self, key):
        return super().reset(key, {})


class Keyed(Right):
    def reset(self, key, params):
        state, obs = super().reset(key, params)
        return (state, key), obs

    def step(self, key, env_state, action, params):
        after, timestep = super().step(key, env_state[0], action, params)
        return (after, env_state[1]), timestep


class InPlace(Right):
    def reset(self, key, params):
        state, obs = super().reset(key, params)
        return {"inner": state}, obs

    def step(self, key, env_state, action, params):
        env_state["inner"], timestep = super().step(key, env_state["inner"], action, params)
        return dict(env_state), timestep


class Scalar(Right):
    """Reads how many there are of the params, which vmapping changes nothing of but a lookup does."""

    def step(self, key, env_state, action, params):
        return super().step(key, env_state, action, {"push": float(params["push"])})


@jax.custom_batching.custom_vmap
def alone(x):
    return x


@alone.def_vmap
def _(axis_size, in_batched, x):
    return x.mean(0, keepdims=True).repeat(axis_size, 0), True


class Mixes(Right):
    """Under vmap, each copy gets the mean of all, as from a normalization over the batch."""

    def step(self, key, env_state, action, params):
        return super().step(key, env_state.replace(place=alone(env_state.place)), action, params)


class ResetsItself(Right):
    def step(self, key, env_state, action, params):
        after, timestep = super().step(key, env_state, action, params)
        start = self.reset(key, params)[0]
        over = timestep.terminated | timestep.truncated
        return jax.tree.map(lambda a, b: jnp.where(over, a, b), start, after), timestep


class HostNoise(Right):
    def step(self, key, env_state, action, params):
        after, timestep = super().step(key, env_state, action, params)
        noise = jax.experimental.io_callback(
            lambda: np.float32(np.random.uniform()), jax.ShapeDtypeStruct((), "float32")
        )
        return after, timestep.replace(reward=timestep.reward + noise)


@dataclass(frozen=True)
class Summarized(Right):
    episode_info: Any = ()

    def step(self, key, env_state, action, params):
        after, timestep = super().step(key, env_state, action, params)
        return after, timestep.replace(info={"place": after.place})


WRONG = [
    (NoStep(), "step: cannot be read, AttributeError"),
    (object(), "max_episode_steps: cannot be read"),
    (OtherSpace(), "observation_space is tuple, must be one of evorl.spaces: Box, Discrete"),
    (UpsideDown(), r"observation_space: cannot be read, OptionError: low=.*: must not be above high, 2\.0"),
    (Unbounded(), "action_space: its bounds are -inf and 1.0, bounds of actions must be finite"),
    (Fixed(), r"action_space: its bounds are \(-1\.0, 1\.0\) and 1\.0, bounds of actions must be .* low below high"),
    (Right(max_episode_steps=0), "max_episode_steps is 0, must be a whole number, at least 1"),
    (Right(max_episode_steps=5.0), "max_episode_steps is 5.0, must be a whole number"),
    (Right(fresh_reset="yes"), "fresh_reset is 'yes', must be True or False"),
    (TextParams(), "params.name is 'ice', must be a number or an array"),
    (PythonBranch(), r"step: TracerBoolConversionError: .*jnp\.where.* in step \(tests/test_check\.py:\d+\)"),
    (NumPy(), r"step: TracerArrayConversionError: .*use jnp"),
    (Scalar(), r"step: ConcretizationTypeError: "),
    (Leaks(), r"step.*: UnexpectedTracerError: .*an array of one call was kept in self or a global"),
    (NoParams(), r"reset: TypeError: .*takes 2 positional arguments but 3 were given"),
    (Lost(), r"reset: obs\.place is float32 \[3\], must be float32 \[2\]\n"),
    (Lost(), r"reset: obs\.side is missing, must be int32 \[\]"),
    (Weak(), r"step: state\.place is float32 \[2\], must be int32 \[2\] as from reset\n"),
    (Weak(), r"step: state\.steps is int32 \[\], must be int32 \[\] of weak type \(a Python number: give it a dtype\)"),
    (Pair(), r"step returns tuple, must return \(state, TimeStep\)"),
    (changed(reward=lambda t, _: jnp.int32(t.reward)), r"step: reward is int32 \[\], must be float32 \[\]"),
    (changed(terminated=lambda t, _: jnp.float32(t.terminated)), r"step: terminated is float32 \[\], must be bool"),
    (GlobalNoise(), r"step\.timestep\.reward differs between calls with and without jit"),
    (HostNoise(), r"step\.timestep\.reward differs between calls with the same key"),
    (Mixes(), r"step\.state\.place differs between calls with and without vmap"),
    (Remembers(), r"reset or step changes self\.resets"),
    (InPlace(), r"step changes state\.inner\.\w+ of its arguments in place"),
    (changed(obs=lambda t, s: t.obs | {"place": t.obs["place"] + 2.0 * (s.steps == 2)}),
     r"step: obs\.place\[\d\] at step 2 is \d\.\d+, must be finite and from -2\.0 to 2\.0"),
    (changed(obs=lambda t, s: t.obs | {"side": jnp.int32(2)}), r"step: obs\.side at step 1 is 2, .* from 0 to 1"),
    (changed(reward=lambda t, s: jnp.where(s.steps == 3, jnp.nan, 0.0)), "step: reward at step 3 is nan"),
    (changed(reward=lambda t, s: {"a": t.reward, "b": s.steps / jnp.zeros(2)}), r"reward at step 1 is \[.* inf +inf\]"),
    (Summarized(episode_info={"place": "least"}), "episode_info: place is 'least', must be one of sum, mean, last"),
    (Summarized(episode_info={"speed": "sum"}), r"info has no array 'speed', .*; it has \['place'\]"),
    (changed(truncated=lambda t, s: s.steps > 9, terminated=lambda t, s: s.steps > 9),
     "step: neither terminated nor truncated at step 5, which is max_episode_steps"),
    (changed(truncated=lambda t, s: s.steps > 3, terminated=lambda t, s: s.steps > 3),
     "step: terminated and truncated are both true at step 4"),
    (ResetsItself(), r"step: the step counter .* is back at its initial value at the end of the episode, step [345]"),
]  # fmt: skip


@pytest.mark.parametrize(("env", "message"), WRONG, ids=[f"{type(env).__name__}-{line[:24]}" for env, line in WRONG])
def test_what_is_wrong_is_named_with_its_place(env, message):
    with pytest.raises(EnvError, match=message) as caught:
        envs.check_env(env, episodes=4)
    assert caught.value.__cause__ is None
    assert "Traceback" not in str(caught.value)


def test_all_that_is_wrong_is_told_at_once_a_line_each():
    with pytest.raises(EnvError) as caught:
        envs.check_env(Right(max_episode_steps=True, fresh_reset=1))
    assert str(caught.value).splitlines() == [
        "Right does not follow the environment interface, evorl.types.Env:",
        "  max_episode_steps is True, must be a whole number, at least 1",
        "  fresh_reset is 1, must be True or False",
    ]


def test_params_are_those_given():
    with pytest.raises(EnvError, match=r"obs\.place\[\d\] at step 1"):
        envs.check_env(Right(), env_params={"push": 9.0})


@pytest.mark.program
def test_what_may_be_right_is_a_note(capsys):
    envs.check_env(changed(terminated=lambda t, s: s.steps >= 5, truncated=lambda t, s: s.steps < 0), episodes=4)
    assert "all 4 episodes were terminated at step 5, which is max_episode_steps" in capsys.readouterr().err
    envs.check_env(probe.DelayedReward(), episodes=4)
    assert "4 keys gave the same initial state" in capsys.readouterr().err
    envs.check_env(Keyed(), episodes=4)
    assert "state.1 is a random key; copies of the state repeat its noise" in capsys.readouterr().err
    envs.check_env(changed(reward=lambda t, _: {"speed": t.reward, "costs": jnp.stack([t.reward] * 2)}), episodes=4)
    assert "reward has 3 values" in capsys.readouterr().err
    envs.check_env(probe.ObsDependentReward(), episodes=8)  # one step that ends the task
    assert capsys.readouterr().err == ""


@pytest.mark.program
@pytest.mark.parametrize("module", ["evorl.types", "evorl.envs", "evorl.envs.check", "evorl.spaces"])
def test_imports_are_light_and_make_no_circle(module):
    code = f"import {module}, evorl.envs, sys; assert callable(evorl.envs.check_env); assert 'brax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
