"""Pictures on a plain install, and the viewer: what it shows, and that it asks nobody for anything."""

import base64
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import jax
import mujoco
import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from evorl import command
from evorl.envs import bodies, canvas, render, viewer
from evorl.envs.sanity.bandit import Bandit
from evorl.envs.suites.brax import Brax
from evorl.envs.suites.gymnasium import to_gymnasium
from evorl.envs.suites.gymnax import Gymnax
from evorl.envs.viewer import Solid
from evorl.envs.wrappers import RewardTransform
from evorl.errors import EnvError, OptionError
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
    bodies.find_rendering_problem.cache_clear()
    env = RewardTransform(Brax("inverted_pendulum", "spring"), delay=2)
    states = states_of(env)
    assert [path.name for path in render.save_episode(env, states, tmp_path)] == ["viewer.html"]
    assert capsys.readouterr().err.splitlines() == [
        "no pictures: MuJoCo cannot render on this machine (an OpenGL platform library has not been loaded); "
        "try MUJOCO_GL=egl or osmesa"
    ]
    monkeypatch.setattr(mujoco, "Renderer", None)  # a second attempt without OpenGL would abort the process
    render.save_episode(env, states, tmp_path)
    bodies.find_rendering_problem.cache_clear()
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
    with pytest.raises(OptionError, match=r"^MUJOCO_GL=osmesa: MuJoCo cannot load it"):
        Brax("ant").observation_space  # noqa: B018


def is_painted(frame, point, color):
    """Return whether a frame has a color within 3 pixels of a point, in pixels from its upper left corner."""
    x, y = (round(float(number)) for number in point)
    return (frame[max(y - 3, 0) : y + 4, max(x - 3, 0) : x + 4] == color).all(-1).any()


def test_a_pole_leans_to_the_side_and_by_the_angle_of_its_state(monkeypatch):
    for missing in ("pygame", "matplotlib"):
        monkeypatch.setitem(sys.modules, missing, None)
    env, angles = Gymnax("CartPole-v1"), (-0.4, 0.0, 0.2)
    state, _ = env.reset(jax.random.key(0), env.default_params)
    states = [replace(state, inner=replace(state.inner, x=0.5, theta=angle)) for angle in angles]
    frames = env.render_frames(states)
    for frame, angle in zip(frames, angles, strict=True):  # 120 pixels per metre, the track 360 pixels from the top
        tip = 120 * (3.2 + 0.5 + np.sin(angle)), 360 - 120 * (0.1 + np.cos(angle))
        assert frame.shape == (480, 768, 3)
        assert is_painted(frame, tip, canvas.ORANGE)
        assert not is_painted(frame, (768 - tip[0], tip[1]), canvas.ORANGE)


def test_a_pendulum_at_angle_0_stands_up():
    env = Gymnax("Pendulum-v1")
    state, _ = env.reset(jax.random.key(0), env.default_params)
    up, down, left = env.render_frames([replace(state, inner=replace(state.inner, theta=x)) for x in (0, np.pi, 1.57)])
    assert [is_painted(up, (240, 90), canvas.RED), is_painted(up, (240, 390), canvas.RED)] == [True, False]
    assert [is_painted(down, (240, 90), canvas.RED), is_painted(down, (240, 390), canvas.RED)] == [False, True]
    assert [is_painted(left, (90, 240), canvas.RED), is_painted(left, (390, 240), canvas.RED)] == [True, False]


NAMES = [name for name in Gymnax.names() if not name.startswith("MNIST")]


@pytest.mark.parametrize("name", NAMES)
def test_every_environment_of_gymnax_has_frames(name):
    env = Gymnax(name)
    state, _ = env.reset(jax.random.key(0), env.default_params)
    (frame,) = render.render_states(env, [state])
    assert frame.shape[0] >= 480 or frame.shape[1] >= 480
    assert frame.dtype == np.uint8
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 1
    assert env.render_fps > 0


def test_gymnasium_gets_the_frames_and_their_rate():
    made = to_gymnasium(RewardTransform(Gymnax("CartPole-v1"), delay=2), render_mode="rgb_array")
    assert made.metadata == {"render_modes": ["rgb_array"], "render_fps": 50}
    with pytest.raises(OptionError, match=r"^render=None: call reset first"):
        made.render()
    made.reset(seed=0)
    before = made.render()
    assert before.shape == (480, 768, 3)
    made.step(1)
    assert (made.render() != before).any()
    assert to_gymnasium(Bandit()).metadata == {"render_modes": []}


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (lambda n: [np.zeros((4, 4, 3))] * n, r"a frame is float64 \[4, 4, 3\], must be uint8 \[height, width, 3\]"),
        (lambda n: [np.zeros((4, 4), np.uint8)] * n, r"a frame is uint8 \[4, 4\], must be"),
        (lambda n: [np.zeros((4, 4, 3), np.uint8)] * (n - 1), "returned 1 frames for 2 states"),
    ],
)
def test_frames_of_a_wrong_kind_are_named(frames, message):
    class Wrong(Bandit):
        render_fps = 5

        def render_frames(self, states):
            return frames(len(states))

    with pytest.raises(EnvError, match=rf"^Wrong.render_frames: {message}"):
        render.render_states(Wrong(), [None, None])


CAMERA = """
from evorl.command import choose_opengl
choose_opengl()
import mujoco, numpy as np
from evorl.envs.bodies import render_poses
from evorl.errors import EnvError, OptionError

def count_red(joint, positions):
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody><light pos='0 0 9'/><body pos='0 0 1'>{joint}"
        "<geom size='0.3' rgba='1 0 0 1'/></body></worldbody></mujoco>")
    for frame in render_poses(model, positions):
        red, green, blue = np.moveaxis(frame.astype(int), -1, 0)
        print((red > 2 * np.maximum(green, blue) + 20).sum())

try:
    count_red("<freejoint/>", [np.array([x, 0, 1, 1, 0, 0, 0.0]) for x in (0, 90)])
    count_red("<joint type='slide' axis='1 0 0' range='-1 1' limited='true'/>", [np.array([x]) for x in (-1.0, 0, 1)])
except OptionError as error:
    print(error)
"""


@pytest.mark.program
def test_the_camera_keeps_a_body_in_view():
    """In a process of its own, as MuJoCo takes its OpenGL when it is imported."""
    said = subprocess.run([sys.executable, "-c", CAMERA], capture_output=True, text=True, check=True).stdout
    if "cannot draw here" in said:
        pytest.skip(said)
    near, far, left, middle, right = map(int, said.split())
    assert near > 5000
    assert far == pytest.approx(near, rel=0.05)
    assert min(left, right) > 0.5 * middle > 500


@pytest.mark.program
@pytest.mark.parametrize("works", [True, False])
def test_ffmpeg_gets_whole_frames_and_its_failure_is_told(works, tmp_path, monkeypatch, capsys):
    fake = tmp_path / "ffmpeg"
    end = 'for last; do :; done; cat > "$last"' if works else "echo cannot encode >&2; exit 1"
    fake.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/given\n{end}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    frames = [np.full((6, 4, 3), i, np.uint8) for i in range(5)]
    written = render.save_frames(frames, 12.5, tmp_path)
    assert [path.name for path in written] == ["episode.gif", "episode.png", "episode.mp4"][: 2 + works]
    given = (tmp_path / "given").read_text()
    assert "-pixel_format rgb24 -video_size 4x6 -framerate 12.5 -i -" in given
    if works:
        assert written[-1].read_bytes() == b"".join(frame.tobytes() for frame in frames)
    assert capsys.readouterr().err == ("" if works else "no MP4: cannot encode\n")
    with Image.open(written[0]) as gif:
        assert (gif.n_frames, gif.info["duration"]) == (5, 80)


def test_what_has_no_bodies_or_draws_nothing_says_so(tmp_path, capsys):
    fast = Brax("fast")
    assert fast.draw(states_of(fast), tmp_path) == []
    assert capsys.readouterr().err == "no pictures: Brax's fast has no bodies to render\n"
    for env in (Bandit(), RewardTransform(Bandit())):
        policy = episodes.Policy.__new__(episodes.Policy)
        policy.env, policy.env_params, policy._modes = env, env.default_params, {False: print}
        assert episodes.draw_episode(policy, tmp_path / "play") == []
        assert capsys.readouterr().err == "no pictures: Bandit cannot be rendered\n"
    assert not (tmp_path / "play").exists()
