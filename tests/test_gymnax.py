import importlib
import os
import subprocess
import sys

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.deferred_imports import DeferredModule, import_deferring
from evorl.envs.suites.gymnax import Gymnax
from evorl.errors import OptionError
from evorl.spaces import Box, Discrete


def test_spaces():
    assert Gymnax("CartPole-v1").action_space == Discrete(2)
    assert Gymnax("Pendulum-v1").action_space == Box(-2.0, 2.0, (1,))
    assert Gymnax("CartPole-v1").observation_space.shape == (4,)
    assert Gymnax("CartPole-v1").max_episode_steps == 500


def test_it_truncates_at_the_limit_and_the_observation_is_the_successor(key):
    env = Gymnax("Pendulum-v1", max_episode_steps=5)
    theirs, params = gymnax.make("Pendulum-v1")
    obs, inner = theirs.reset_env(key, params)
    state, ours = env.reset(key, env.default_params)
    np.testing.assert_array_equal(ours, obs)
    for step in range(1, 8):
        action = jnp.array([0.7])
        obs, inner, reward, _, _ = theirs.step_env(key, inner, action, params)
        state, timestep = env.step(key, state, action, env.default_params)
        np.testing.assert_allclose(timestep.obs, obs, rtol=1e-6)
        np.testing.assert_allclose(timestep.reward, reward, rtol=1e-6)
        assert not timestep.terminated
        assert bool(timestep.truncated) == (step >= 5)


def test_a_fall_terminates_and_is_not_truncation(key):
    env = Gymnax("CartPole-v1")
    state, _ = env.reset(key, env.default_params)
    for _ in range(30):
        state, timestep = env.step(key, state, jnp.int32(1), env.default_params)
        if timestep.terminated:
            break
    assert timestep.terminated
    assert not timestep.truncated


def test_wrong_names_are_refused():
    with pytest.raises(OptionError, match="did you mean CartPole-v1"):
        Gymnax("CartPole-v2")
    assert jax.eval_shape(Gymnax("Acrobot-v1").reset, jax.random.key(0), Gymnax("Acrobot-v1").default_params)


def test_params_by_name(key):
    env = Gymnax("MemoryChain-bsuite", params={"memory_length": 3})
    params = env.default_params
    assert (params.memory_length, params.max_steps_in_episode, env.max_episode_steps) == (3, 1000, 1000)
    hash(env)
    state, obs = env.reset(key, params)
    sign, rewards = obs[2], []
    for _ in range(4):  # it asks after as many steps as are to be remembered, and ends
        state, timestep = env.step(key, state, jnp.int32(sign > 0), params)
        rewards.append(float(timestep.reward))
    assert rewards == [0, 0, 0, 1]
    assert timestep.terminated


@pytest.mark.parametrize(("params", "message"), [
    ({"memory_lenght": 3}, "unknown param of MemoryChain-bsuite memory_lenght; did you mean memory_length"),
    ({"max_steps_in_episode": 3}, "params.max_steps_in_episode=3: use max_episode_steps instead"),
    ({"memory_length": "long"}, "params.memory_length=long: must be a number, such as gymnax's default 5"),
])  # fmt: skip
def test_params_that_are_none_are_refused(params, message):
    with pytest.raises(OptionError, match=message):
        Gymnax("MemoryChain-bsuite", params=params)


def test_downloads_nothing():
    with pytest.raises(
        OptionError, match=r"env.name=MNISTBandit-bsuite: needs the four files of MNIST in .*, which are missing"
    ):
        Gymnax("MNISTBandit-bsuite")


def write_drawing(folder, module):
    """Write a package with a submodule, and a module that imports both of them."""
    (folder / "drawing").mkdir()
    (folder / "drawing/__init__.py").write_text("")
    (folder / "drawing/colors.py").write_text("RED = 'red'")
    (folder / "drawing/plots.py").write_text("def draw(color):\n    return f'a {color} line'")
    imports = "import drawing.plots as plots\nfrom drawing import colors\n"
    (folder / f"{module}.py").write_text(f"{imports}def draw():\n    return plots.draw(colors.RED)\n")


@pytest.mark.parametrize("uses_it_at_once", [False, True])
def test_an_import_is_deferred_until_it_is_used(uses_it_at_once, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    before, finders = set(sys.modules), list(sys.meta_path)
    write_drawing(tmp_path, "sketch")
    if uses_it_at_once:
        with (tmp_path / "sketch.py").open("a") as file:
            file.write("WHOLE = draw()\n")
    try:
        sketch = import_deferring("sketch", "drawing")
        assert ("drawing" in sys.modules) == uses_it_at_once
        assert sys.meta_path == finders
        assert sketch.draw() == "a red line"
        assert sys.modules["drawing"].plots is importlib.import_module("drawing.plots") is sys.modules["drawing.plots"]
        assert not isinstance(importlib.import_module("drawing.plots"), DeferredModule)
        assert import_deferring("drawing", "drawing") is sys.modules["drawing"]
        with pytest.raises(AttributeError, match=r"drawing\.colors"):
            sketch.colors.BLUE  # noqa: B018
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]


@pytest.mark.program
def test_the_renderers_of_gymnax_work_without_plots_at_first():
    code = """
import sys
from evorl import Gymnax
env, key = Gymnax("Pong-misc"), __import__("jax").random.key(0)
assert not {"matplotlib", "seaborn"} & set(sys.modules)
state = env.reset(key, env.default_params)[0]
env.env.render(state.inner, env.default_params)
import matplotlib, seaborn, gymnax.visualize
assert seaborn.color_palette is sys.modules["seaborn.palettes"].color_palette
assert gymnax.visualize.Visualizer
"""
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"MPLBACKEND": "agg"}, check=True)
