"""Frames of gymnax environments, drawn from their states."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from evorl.envs.canvas import BLUE, GRAY, GREEN, INK, LIGHT, ORANGE, RED, Canvas, paint_cells
from evorl.envs.render import render_text

CLASSIC_FPS = {"CartPole-v1": 50.0, "Pendulum-v1": 20.0, "Acrobot-v1": 15.0}  # as in Gymnasium, and 1 / dt in gymnax
CLASSIC_FPS |= {"MountainCar-v0": 30.0, "MountainCarContinuous-v0": 30.0}
OTHER_FPS = 10.0
PALETTE = np.array(  # colors of channels, safe for color blindness (Okabe and Ito 2008), and grays
    [BLUE, ORANGE, GREEN, RED, (86, 180, 233), (240, 228, 66), (204, 121, 167), (250, 250, 250), GRAY, LIGHT], np.uint8
)
NIGHT = np.array((18, 20, 26), np.uint8)


def get_fps(name: str) -> float:
    """Return the steps per second at which an environment of gymnax is shown."""
    return CLASSIC_FPS.get(name, OTHER_FPS)


def render_frames(name: str, env: Any, params: Any, states: Sequence[Any]) -> list[np.ndarray]:
    """Render states of a gymnax environment; those without a painter are rendered as text."""
    states = jax.device_get(list(states))
    if name.endswith("MinAtar") or name in CHANNEL_NAMES:
        observe = jax.jit(jax.vmap(lambda state: env.observe(jax.random.key(0), state, None, params)))
        seen = observe(jax.tree.map(lambda *leaves: np.stack(leaves), *states))
        return [paint_channels(np.asarray(obs).reshape(*obs.shape[:2], -1)) for obs in seen]
    if name in PAINTERS:
        return [PAINTERS[name](env, params, state) for state in states]
    return render_text([format_state(state) for state in states], 24)


def format_state(state: Any) -> str:
    """Return a line for each field of a state."""
    values = {field.name: np.asarray(getattr(state, field.name)) for field in dataclasses.fields(state)}
    return "\n".join(f"{name}: {np.array_str(value, precision=3)}" for name, value in values.items())


def paint_channels(obs: np.ndarray) -> np.ndarray:
    """Paint an observation, shape [rows, columns, channels], with one color per channel and one pixel per cell.

    Later channels cover earlier ones.
    """
    picture = np.broadcast_to(NIGHT, (*obs.shape[:2], 3)).copy()
    for channel in range(obs.shape[2]):
        picture[obs[..., channel] > 0] = PALETTE[channel % len(PALETTE)]
    return picture


def _paint_cart_pole(env: Any, params: Any, state: Any) -> np.ndarray:
    del env
    canvas, reach = Canvas(-3.2, 3.2, -1, 3), float(params.x_threshold)
    canvas.draw_line([(-3.2, 0), (3.2, 0)], 0.02)
    for side in (-reach, reach):
        canvas.draw_line([(side, -0.1), (side, 0.1)], 0.04, RED)
    x, angle, length = float(state.x), float(state.theta), 2 * float(params.length)
    canvas.draw_box((x, 0), 0.7, 0.36, INK)
    tip = x + length * np.sin(angle), 0.1 + length * np.cos(angle)
    canvas.draw_line([(x, 0.1), tip], 0.12, ORANGE)
    canvas.draw_circle((x, 0.1), 0.05, BLUE)
    return canvas.to_frame()


def _paint_pendulum(env: Any, params: Any, state: Any) -> np.ndarray:
    del env
    canvas, length, angle = Canvas(-1.6, 1.6, -1.6, 1.6), float(params.l), float(state.theta)
    canvas.draw_line([(0, 0), (-length * np.sin(angle), length * np.cos(angle))], 0.2, RED)
    canvas.draw_circle((0, 0), 0.05, INK)
    torque = float(state.last_u) / float(params.max_torque)
    canvas.draw_box((0.0, -1.5), 3.2, 0.06, LIGHT)
    canvas.draw_box((0.8 * torque, -1.5), abs(1.6 * torque), 0.06, BLUE)
    return canvas.to_frame()


def _paint_acrobot(env: Any, params: Any, state: Any) -> np.ndarray:
    del env
    upper, lower = float(params.link_length_1), float(params.link_length_2)
    reach, angle = 1.2 * (upper + lower), float(state.joint_angle1)
    canvas = Canvas(-reach, reach, -reach, reach)
    canvas.draw_line([(-reach, 1), (reach, 1)], 0.02, GREEN)
    elbow = np.array([upper * np.sin(angle), -upper * np.cos(angle)])
    angle += float(state.joint_angle2)
    hand = elbow + np.array([lower * np.sin(angle), -lower * np.cos(angle)])
    canvas.draw_line([(0, 0), elbow], 0.18, BLUE)
    canvas.draw_line([elbow, hand], 0.18, ORANGE)
    for joint in ((0, 0), elbow):
        canvas.draw_circle(joint, 0.06, INK)
    return canvas.to_frame()


def _paint_mountain_car(env: Any, params: Any, state: Any) -> np.ndarray:
    del env
    low, high = float(params.min_position), float(params.max_position)

    def height(x: Any) -> Any:
        return 0.45 * np.sin(3 * x) + 0.55

    canvas, hill = Canvas(low, high, -0.1, 1.25), np.linspace(low, high, 100)
    canvas.draw_polygon([(low, -1), *zip(hill, height(hill), strict=True), (high, -1)], LIGHT)
    canvas.draw_line([*zip(hill, height(hill), strict=True)], 0.01)
    goal = float(params.goal_position)
    foot = float(height(goal))
    canvas.draw_line([(goal, foot), (goal, foot + 0.15)], 0.008)
    canvas.draw_polygon([(goal, foot + 0.15), (goal, foot + 0.09), (goal - 0.08, foot + 0.12)], GREEN)
    x = float(state.position)
    slope = np.arctan(1.35 * np.cos(3 * x))
    turn = np.array([[np.cos(slope), -np.sin(slope)], [np.sin(slope), np.cos(slope)]])

    def place(*points: tuple[float, float]) -> list[Any]:
        return [turn @ point + np.array([x, height(x)]) for point in points]

    canvas.draw_polygon(place((-0.07, 0.02), (0.07, 0.02), (0.05, 0.07), (-0.05, 0.07)), BLUE)
    for wheel in place((-0.04, 0.02), (0.04, 0.02)):
        canvas.draw_circle(wheel, 0.02, INK)
    return canvas.to_frame()


def _paint_point_robot(env: Any, params: Any, state: Any) -> np.ndarray:
    del env
    reach = 1.4 * float(params.circle_radius)
    canvas, angles = Canvas(-reach, reach, -reach, reach), np.linspace(0, np.pi, 60)
    arc = float(params.circle_radius) * np.stack([np.cos(angles), np.sin(angles)], 1)
    canvas.draw_line([*arc], 0.02, GRAY)
    canvas.draw_circle(state.goal, float(params.goal_radius), GREEN)
    canvas.draw_circle(state.pos, 0.05, RED)
    return canvas.to_frame()


def _paint_reacher(env: Any, params: Any, state: Any) -> np.ndarray:
    del params
    reach, angles = 1.1 * env.num_joints, np.asarray(state.angles, float)
    joints = np.concatenate([np.zeros((1, 2)), np.cumsum(np.stack([np.cos(angles), np.sin(angles)], 1), 0)])
    canvas = Canvas(-reach, reach, -reach, reach)
    canvas.draw_circle(state.goal_xy, 0.12, GREEN)
    canvas.draw_line([*joints], 0.12, BLUE)
    for joint in joints:
        canvas.draw_circle(joint, 0.05, INK)
    return canvas.to_frame()


def _paint_swimmer(env: Any, params: Any, state: Any) -> np.ndarray:
    del env, params
    reach = max(1.4, *(1.1 * np.abs(np.asarray(state.xy, float))))
    canvas = Canvas(-reach, reach, -reach, reach)
    canvas.draw_circle(state.goal_xy, 0.12, GREEN)
    for urchin in np.asarray(state.urchin_xys):
        canvas.draw_circle(urchin, 0.08, INK)
    canvas.draw_circle(state.xy, 0.06, BLUE)
    return canvas.to_frame()


def _paint_rooms(env: Any, params: Any, state: Any) -> np.ndarray:
    del params
    walls = np.asarray(env.occupied_map)
    return paint_cells(walls.shape, {GRAY: np.argwhere(walls > 0), GREEN: state.goal, BLUE: state.pos})


def _paint_catch(env: Any, params: Any, state: Any) -> np.ndarray:
    del params
    return paint_cells(
        (env.rows, env.columns), {BLUE: (state.paddle_y, state.paddle_x), ORANGE: (state.ball_y, state.ball_x)}
    )


def _paint_deep_sea(env: Any, params: Any, state: Any) -> np.ndarray:
    del params
    side = env.size
    return paint_cells((side, side), {GREEN: (side - 1, side - 1), BLUE: (state.row, state.column)})


def _paint_frozen_lake(env: Any, params: Any, state: Any) -> np.ndarray:
    del params
    tiles = np.asarray(env.desc)
    hole, goal = 2, 3  # tiles of gymnax's FrozenLake
    place = divmod(int(state.position), tiles.shape[1])
    return paint_cells(tiles.shape, {INK: np.argwhere(tiles == hole), GREEN: np.argwhere(tiles == goal), BLUE: place})


PAINTERS: dict[str, Callable[[Any, Any, Any], np.ndarray]] = {
    "CartPole-v1": _paint_cart_pole,
    "Pendulum-v1": _paint_pendulum,
    "Acrobot-v1": _paint_acrobot,
    "MountainCar-v0": _paint_mountain_car,
    "MountainCarContinuous-v0": _paint_mountain_car,
    "PointRobot-misc": _paint_point_robot,
    "Reacher-misc": _paint_reacher,
    "Swimmer-misc": _paint_swimmer,
    "FourRooms-misc": _paint_rooms,
    "MetaMaze-misc": _paint_rooms,
    "Catch-bsuite": _paint_catch,
    "DeepSea-bsuite": _paint_deep_sea,
    "FrozenLake-misc": _paint_frozen_lake,
}
CHANNEL_NAMES = {"Pong-misc"}  # observations are images with channels, as in MinAtar
