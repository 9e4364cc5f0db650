"""What the v5 tasks of Gymnasium 1.3 make of MuJoCo's numbers: their own equations, for many rows at once.

`env` is Gymnasium's, for its options; `seen` holds numbers of MjData after the step by name, each [n, ...].
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Seen: TypeAlias = Mapping[str, np.ndarray]
Outcome: TypeAlias = tuple[np.ndarray, np.ndarray]  # reward, terminated: [n]


@dataclass(frozen=True)
class Step:
    """What a step is judged by, leaves [n, ...]."""

    seen: Seen
    action: np.ndarray
    velocity: np.ndarray  # along x, of what the task follows


@dataclass(frozen=True)
class Task:
    """One of Gymnasium's.

    reads gives what it sees of an MjData but qpos and qvel, as views. It is rewarded for how far qpos[0] has come, or
    what place says, which MuJoCo computes before it integrates, so that it does not follow from the state after it.
    """

    obs: Callable[[Any, Seen], list[np.ndarray]]
    outcome: Callable[[Any, Step], Outcome]
    reads: Callable[[Any], Mapping[str, np.ndarray]] = lambda data: {}
    place: Callable[[Any, Seen], np.ndarray] | None = None


def squares(x: np.ndarray) -> np.ndarray:
    """The sum of the squares of each row."""
    return np.square(x).reshape(len(x), -1).sum(1)


def within(x: np.ndarray, bounds: Any) -> np.ndarray:
    """Whether numbers lie between two others."""
    return (bounds[0] < x) & (x < bounds[1])


def flat(x: np.ndarray) -> np.ndarray:
    """Each row as a vector."""
    return x.reshape(len(x), -1)


def excluding(env: Any, position: np.ndarray, first: int) -> np.ndarray:
    """The position without where it is in the world, unless that is asked for."""
    return position[:, first:] if env._exclude_current_positions_from_observation else position


def moving(first: int) -> Callable[[Any, Seen], list[np.ndarray]]:
    """Positions, without the first ones, and velocities."""
    return lambda env, seen: [excluding(env, seen["qpos"], first), seen["qvel"]]


def walking(env: Any, seen: Seen) -> list[np.ndarray]:
    """Positions, and velocities up to a limit."""
    return [excluding(env, seen["qpos"], 1), np.clip(seen["qvel"], -10, 10)]


def running(env: Any, step: Step) -> Outcome:
    """HalfCheetah and Swimmer: forward, at little cost."""
    cost = env._ctrl_cost_weight * squares(step.action)
    return env._forward_reward_weight * step.velocity - cost, np.zeros(len(cost), bool)


def upright(env: Any, step: Step, healthy: np.ndarray) -> Outcome:
    """The same for what may fall."""
    reward, _ = running(env, step)
    return reward + healthy * env._healthy_reward, ~healthy & bool(env._terminate_when_unhealthy)


def walker(env: Any, step: Step) -> Outcome:
    """By height and angle."""
    z, angle = step.seen["qpos"][:, 1:3].T
    return upright(env, step, within(z, env._healthy_z_range) & within(angle, env._healthy_angle_range))


def hopper(env: Any, step: Step) -> Outcome:
    """By height, angle and the rest of the state."""
    z, angle = step.seen["qpos"][:, 1:3].T
    rest = np.concatenate([step.seen["qpos"][:, 2:], step.seen["qvel"]], 1)
    healthy = within(rest, env._healthy_state_range).all(1)
    healthy &= within(z, env._healthy_z_range) & within(angle, env._healthy_angle_range)
    return upright(env, step, healthy)


def ant_forces(env: Any, seen: Seen) -> np.ndarray:
    """What acts on its bodies, within limits."""
    return np.clip(seen["cfrc_ext"], *env._contact_force_range)


def ant_obs(env: Any, seen: Seen) -> list[np.ndarray]:
    """Positions, velocities and forces."""
    forces = [flat(ant_forces(env, seen)[:, 1:])] if env._include_cfrc_ext_in_observation else []
    return [excluding(env, seen["qpos"], 2), seen["qvel"], *forces]


def ant(env: Any, step: Step) -> Outcome:
    """By height; contacts cost."""
    qpos, qvel = step.seen["qpos"], step.seen["qvel"]
    low, high = env._healthy_z_range
    finite = np.isfinite(qpos).all(1) & np.isfinite(qvel).all(1)
    reward, terminated = upright(env, step, finite & (low <= qpos[:, 2]) & (qpos[:, 2] <= high))
    return reward - env._contact_cost_weight * squares(ant_forces(env, step.seen)), terminated


def humanoid_reads(data: Any) -> Mapping[str, np.ndarray]:
    """Inertia, velocities and forces of bodies, and where they are."""
    seen = {"cinert": data.cinert, "cvel": data.cvel, "qfrc_actuator": data.qfrc_actuator}
    return {**seen, "cfrc_ext": data.cfrc_ext, "xipos": data.xipos}


def humanoid_obs(env: Any, seen: Seen) -> list[np.ndarray]:
    """Positions, velocities, and of what it reads what is asked for."""
    parts = (
        (env._include_cinert_in_observation, seen["cinert"][:, 1:]),
        (env._include_cvel_in_observation, seen["cvel"][:, 1:]),
        (env._include_qfrc_actuator_in_observation, seen["qfrc_actuator"][:, 6:]),
        (env._include_cfrc_ext_in_observation, seen["cfrc_ext"][:, 1:]),
    )
    return [excluding(env, seen["qpos"], 2), seen["qvel"], *(flat(part) for included, part in parts if included)]


def mass_center(env: Any, seen: Seen) -> np.ndarray:
    """Where the middle of all mass is, along x."""
    mass = env.model.body_mass
    return (seen["xipos"][:, :, 0] * mass).sum(1) / mass.sum()


def humanoid(env: Any, step: Step) -> Outcome:
    """By height; contacts cost, within limits."""
    reward, terminated = upright(env, step, within(step.seen["qpos"][:, 2], env._healthy_z_range))
    contact = env._contact_cost_weight * squares(step.seen["cfrc_ext"])
    return reward - np.clip(contact, *env._contact_cost_range), terminated


def standup(env: Any, step: Step) -> Outcome:
    """Height, which Gymnasium divides by MuJoCo's time step."""
    height = step.seen["qpos"][:, 2] / env.model.opt.timestep
    impact = np.clip(env._impact_cost_weight * squares(step.seen["cfrc_ext"]), *env._impact_cost_range)
    return height - env._ctrl_cost_weight * squares(step.action) - impact + 1, np.zeros(len(height), bool)


def pendulum(env: Any, step: Step) -> Outcome:
    """As long as it stands."""
    state = np.concatenate([step.seen["qpos"], step.seen["qvel"]], 1)
    fallen = ~np.isfinite(state).all(1) | (np.abs(state[:, 1]) > 0.2)
    return (~fallen).astype(float), fallen


def double_obs(env: Any, seen: Seen) -> list[np.ndarray]:
    """The cart, the angles, velocities and the force of the rail."""
    cart, angles = seen["qpos"][:, :1], seen["qpos"][:, 1:]
    forces = np.clip(seen["qfrc_constraint"], -10, 10)[:, :1]
    return [cart, np.sin(angles), np.cos(angles), np.clip(seen["qvel"], -10, 10), forces]


def double(env: Any, step: Step) -> Outcome:
    """The tip high and still."""
    x, y = step.seen["tip"][:, 0], step.seen["tip"][:, 2]
    v1, v2 = step.seen["qvel"][:, 1:3].T
    fallen = y <= 1
    lost = 0.01 * x**2 + (y - 2) ** 2 + 1e-3 * v1**2 + 5e-3 * v2**2
    return env._healthy_reward * ~fallen - lost, fallen


def pusher_obs(env: Any, seen: Seen) -> list[np.ndarray]:
    """The arm, and where it, the object and the goal are."""
    return [seen["qpos"][:, :7], seen["qvel"][:, :7], seen["tips_arm"], seen["object"], seen["goal"]]


def pusher(env: Any, step: Step) -> Outcome:
    """The arm near the object, the object near the goal."""
    arm, thing, goal = (step.seen[name] for name in ("tips_arm", "object", "goal"))
    near, far = np.linalg.norm(thing - arm, axis=1), np.linalg.norm(thing - goal, axis=1)
    cost = squares(step.action) * env._reward_control_weight
    return -far * env._reward_dist_weight - cost - near * env._reward_near_weight, np.zeros(len(cost), bool)


def reacher_obs(env: Any, seen: Seen) -> list[np.ndarray]:
    """The angles, the target, and the way to it."""
    angles, away = seen["qpos"][:, :2], seen["fingertip"] - seen["target"]
    return [np.cos(angles), np.sin(angles), seen["qpos"][:, 2:], seen["qvel"][:, :2], away[:, :2]]


def reacher(env: Any, step: Step) -> Outcome:
    """The fingertip near the target."""
    away = np.linalg.norm(step.seen["fingertip"] - step.seen["target"], axis=1)
    cost = squares(step.action) * env._reward_control_weight
    return -away * env._reward_dist_weight - cost, np.zeros(len(cost), bool)


TASKS = {
    "Ant-v5": Task(
        ant_obs,
        ant,
        lambda data: {"cfrc_ext": data.cfrc_ext, "xpos": data.xpos},
        lambda env, seen: seen["xpos"][:, env.data.body(env._main_body).id, 0],
    ),
    "HalfCheetah-v5": Task(moving(1), running),
    "Hopper-v5": Task(walking, hopper),
    "Humanoid-v5": Task(humanoid_obs, humanoid, humanoid_reads, mass_center),
    "HumanoidStandup-v5": Task(humanoid_obs, standup, humanoid_reads),
    "InvertedDoublePendulum-v5": Task(
        double_obs, double, lambda data: {"qfrc_constraint": data.qfrc_constraint, "tip": data.site_xpos[0]}
    ),
    "InvertedPendulum-v5": Task(lambda env, seen: [seen["qpos"], seen["qvel"]], pendulum),
    "Pusher-v5": Task(
        pusher_obs, pusher, lambda data: {name: data.body(name).xpos for name in ("tips_arm", "object", "goal")}
    ),
    "Reacher-v5": Task(
        reacher_obs, reacher, lambda data: {name: data.body(name).xpos for name in ("fingertip", "target")}
    ),
    "Swimmer-v5": Task(moving(2), running),
    "Walker2d-v5": Task(walking, walker),
}
