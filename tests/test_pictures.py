"""Pictures on a plain install, and the viewer: what it shows, and that it asks nobody for anything."""

import base64
import json
import os
import re
import sys

import jax
import mujoco
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from evorl import command, package
from evorl.envs import viewer
from evorl.envs.sanity.bandit import Bandit
from evorl.envs.suites.brax import Brax
from evorl.envs.suites.gymnax import Gymnax
from evorl.envs.viewer import Solid
from evorl.envs.wrappers import RewardTransform
from evorl.errors import OptionError
from evorl.training import episodes

POSES = np.tile(np.array([0.0, 0, 1, 1, 0, 0, 0]), (3, 2, 1))


def volume(shape):
    """By the theorem of Gauss: positive where faces are counterclockwise from outside."""
    points, faces = shape
    a, b, c, d = (points[faces[:, i]] for i in range(4))
    return float((np.cross(a, b) * c).sum() + (np.cross(a, c) * d).sum()) / 6


def scene_of(text):
    return json.loads(re.search(r"const scene = (\{.*\});", text)[1])


def test_bodies_have_their_volumes():
    """A twelve-sided circle has 0.955 of a circle's area."""
    assert volume(viewer.build_box((1.0, 2.0, 3.0))) == pytest.approx(48)
    assert volume(viewer.build_cylinder(2.0, 3.0)) == pytest.approx(24 * np.pi, rel=0.05)
    assert volume(viewer.build_capsule(1.0, 0.0)) == pytest.approx(4 / 3 * np.pi, rel=0.1)
    assert volume(viewer.build_capsule(1.0, 2.0)) == pytest.approx(4 / 3 * np.pi + 4 * np.pi, rel=0.1)
    corner = np.concatenate([np.zeros((1, 3)), np.eye(3)])
    assert volume(viewer.build_mesh(corner, np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]))) == pytest.approx(
        1 / 6
    )


def test_points_turn_as_scipy_turns_them():
    rng = np.random.default_rng(0)
    points, turn = rng.normal(size=(5, 3)), Rotation.random(random_state=1)
    np.testing.assert_allclose(viewer.rotate(points, turn.as_quat(scalar_first=True)), turn.apply(points), atol=1e-6)


def test_the_page_holds_all_frames_and_asks_for_nothing():
    solid = Solid(1, (1.0, 0.0, 0.0, 1.0), *viewer.build_box((0.5, 0.5, 0.5)))
    text = viewer.build_page('</title><script>alert("x")</script>', [solid], POSES, 0.05, 0.0)
    scene = scene_of(text)
    poses = np.frombuffer(base64.b64decode(scene["poses"]), "<f4").reshape(scene["frames"], scene["links"], 7)
    np.testing.assert_array_equal(poses, POSES)
    assert scene["center"] == [0, 0, 1]
    assert not re.search(r"https?:|//\w|\bimport\b|\bsrc=|\bfetch\b|\bhref\b", text)
    assert "default-src 'none'" in text  # so that a browser keeps it from the network, whatever is in it
    assert text.count("<script>") == 1
    lost = viewer.build_page("lost", [solid], POSES * np.nan, 0.05, None)
    assert scene_of(lost)["frames"] == 3


def states_of(env):
    state, _ = jax.jit(env.reset)(jax.random.key(0), env.default_params)
    return [jax.device_get(state)] * 3


def test_brax_is_seen_where_mujoco_has_no_opengl(tmp_path, monkeypatch, capsys):
    def refuses(*arguments, **options):
        raise RuntimeError("an OpenGL platform library has not been loaded, and so on")

    monkeypatch.setattr(mujoco, "Renderer", refuses)
    env = RewardTransform(Brax("inverted_pendulum", "spring"), delay=2)
    states = states_of(env)
    assert [path.name for path in env.draw(states, tmp_path)] == ["viewer.html"]
    assert capsys.readouterr().err.splitlines() == [
        "no GIF: MuJoCo cannot draw here (an OpenGL platform library has not been loaded); "
        "MUJOCO_GL=egl or osmesa may help"
    ]
    scene = scene_of((tmp_path / "viewer.html").read_text("utf-8"))
    assert (scene["frames"], scene["links"], scene["seconds"]) == (3, 2, pytest.approx(0.02))
    model = env.inner.env.sys.mj_model
    assert [solid["link"] for solid in scene["solids"]] == [int(body) - 1 for body in model.geom_bodyid]
    pole = scene["solids"][-1]  # a capsule of radius 0.049 and length 0.6, fromto="0 0 0 0.001 0 0.6"
    assert np.ptp(np.array(pole["points"])[:, 2]) == pytest.approx(0.6 + 2 * 0.049, abs=0.02)


def test_egl_is_chosen_only_where_it_is_and_a_choice_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    for found, chosen in ((None, None), ("libEGL.so.1", "egl")):
        monkeypatch.delenv("MUJOCO_GL", raising=False)
        monkeypatch.setattr(command, "find_library", lambda name, found=found: found)
        command.choose_opengl()
        assert os.environ.get("MUJOCO_GL") == chosen
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(OptionError, match=r"^MUJOCO_GL=osmesa: MuJoCo does not find it here"):
        Brax("ant").observation_space  # noqa: B018


@pytest.mark.parametrize("missing", ["pygame", "matplotlib"])
def test_classic_control_says_what_its_pictures_need(missing, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, missing, None)
    env = Gymnax("Pendulum-v1")
    assert env.draw(states_of(env), tmp_path) == []
    assert capsys.readouterr().err == (
        f"no pictures: those of Pendulum-v1 need {missing}; {package.install_command('render')}\n"
    )


def test_what_has_no_bodies_or_draws_nothing_says_so(tmp_path, capsys):
    fast = Brax("fast")
    assert fast.draw(states_of(fast), tmp_path) == []
    assert capsys.readouterr().err == "no pictures: Brax's fast has no bodies to draw\n"
    for env in (Bandit(), RewardTransform(Bandit())):
        policy = episodes.Policy.__new__(episodes.Policy)
        policy.env, policy.env_params, policy._modes = env, env.default_params, {False: print}
        assert episodes.draw_episode(policy, tmp_path / "play") == []
        assert capsys.readouterr().err == "no pictures: Bandit draws none\n"
    assert not (tmp_path / "play").exists()
