"""Observations and rewards of the v5 tasks of Gymnasium 1.3: its own equations, for many rows at once.

In these functions, `env` is Gymnasium's environment, for its options and its model. `seen` holds arrays of MjData
after the step, by name, shape [n, ...]. The arrays are NumPy's (MuJoCo's C engine) or JAX's (MJX).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Rows: TypeAlias = Any  # an array of NumPy or JAX, [n, ...]
Quantities: TypeAlias = Mapping[str, Rows]
Outcome: TypeAlias = tuple[Rows, Rows]  # reward, terminated: [n]
PUSHER_BODIES = ("tips_arm", "object", "goal")
REACHER_BODIES = ("fingertip", "target")
HUMANOID_READS = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext", "xipos")


@dataclass(frozen=True)
class StepQuantities:
    """The quantities that determine reward and termination of a step, leaves [n, ...]."""

    quantities: Quantities
    action: Rows
    velocity: Rows  # along x, of the tracked position


@dataclass(frozen=True)
class MuJoCoTask:
    """One of Gymnasium's MuJoCo tasks.

    Args:
        obs: Function of the environment and the quantities that returns the parts of the observation.
        outcome: Function of the environment and a StepQuantities that returns reward and terminated.
        reads: Names of the arrays of MjData that obs and outcome read, in addition to qpos and qvel.
        tracked_position: Function of the environment and the quantities that returns the x position whose
            velocity is rewarded; None takes qpos[0]. MuJoCo computes these positions before it integrates, so
            they do not follow from the state after the step.
    """

    obs: Callable[[Any, Quantities], list[Rows]]
    outcome: Callable[[Any, StepQuantities], Outcome]
    reads: tuple[str, ...] = ()
    tracked_position: Callable[[Any, Quantities], Rows] | None = None


def find_numpy(x: Rows) -> Any:
    """Return the module of an array's functions: numpy, or jax.numpy."""
    return x.__array_namespace__()


def sum_squares(x: Rows) -> Rows:
    """Return the sum of the squares of each row."""
    return find_numpy(x).square(x).reshape(len(x), -1).sum(1)


def is_within(x: Rows, bounds: Any) -> Rows:
    """Return whether values are strictly between two bounds."""
    return (bounds[0] < x) & (x < bounds[1])


def clip(x: Rows, bounds: Any) -> Rows:
    """Return values clipped to two bounds."""
    return find_numpy(x).clip(x, *bounds)


def never(x: Rows) -> Rows:
    """Return a termination that is always false, shape [n], for values [n]."""
    return find_numpy(x).zeros(len(x), bool)


def are_finite(qpos: Rows, qvel: Rows) -> Rows:
    """Return whether all positions and velocities of a row are finite, shape [n]."""
    xp = find_numpy(qpos)
    return xp.isfinite(qpos).all(1) & xp.isfinite(qvel).all(1)


def norm(x: Rows) -> Rows:
    """Return the Euclidean norm of each row."""
    return find_numpy(x).linalg.norm(x, axis=1)


def flatten_rows(x: Rows) -> Rows:
    """Flatten each row to a vector."""
    return x.reshape(len(x), -1)


def drop_root_position(env: Any, position: Rows, first: int) -> Rows:
    """Return positions without the first ones, which locate the body in the world, unless the options include them."""
    return position[:, first:] if env._exclude_current_positions_from_observation else position


def make_state_obs(first: int) -> Callable[[Any, Quantities], list[Rows]]:
    """Return an observation function: positions, without the `first` first ones, and velocities."""
    return lambda env, seen: [drop_root_position(env, seen["qpos"], first), seen["qvel"]]


def walker_obs(env: Any, seen: Quantities) -> list[Rows]:
    """Return positions without the first one, and velocities clipped to [-10, 10]."""
    return [drop_root_position(env, seen["qpos"], 1), clip(seen["qvel"], (-10, 10))]


def forward_outcome(env: Any, step: StepQuantities) -> Outcome:
    """Return forward velocity minus control cost, without termination (HalfCheetah and Swimmer)."""
    cost = env._ctrl_cost_weight * sum_squares(step.action)
    return env._forward_reward_weight * step.velocity - cost, never(cost)


def healthy_outcome(env: Any, step: StepQuantities, healthy: Rows) -> Outcome:
    """Return the forward reward plus a bonus while healthy; terminate if unhealthy and the options say so."""
    reward, _ = forward_outcome(env, step)
    return reward + healthy * env._healthy_reward, ~healthy & bool(env._terminate_when_unhealthy)


def walker_outcome(env: Any, step: StepQuantities) -> Outcome:
    """Return the outcome of Walker2d, which is healthy within ranges of height and angle."""
    z, angle = step.quantities["qpos"][:, 1:3].T
    return healthy_outcome(env, step, is_within(z, env._healthy_z_range) & is_within(angle, env._healthy_angle_range))


def hopper_outcome(env: Any, step: StepQuantities) -> Outcome:
    """Return the outcome of Hopper, which is healthy within ranges of height, angle and the rest of the state."""
    z, angle = step.quantities["qpos"][:, 1:3].T
    healthy = is_within(z, env._healthy_z_range) & is_within(angle, env._healthy_angle_range)
    for rest in (step.quantities["qpos"][:, 2:], step.quantities["qvel"]):
        healthy = healthy & is_within(rest, env._healthy_state_range).all(1)
    return healthy_outcome(env, step, healthy)


def ant_forces(env: Any, seen: Quantities) -> Rows:
    """Return the external forces on Ant's bodies, clipped to the contact force range."""
    return clip(seen["cfrc_ext"], env._contact_force_range)


def ant_obs(env: Any, seen: Quantities) -> list[Rows]:
    """Return Ant's positions and velocities, and its contact forces if the options include them."""
    forces = [flatten_rows(ant_forces(env, seen)[:, 1:])] if env._include_cfrc_ext_in_observation else []
    return [drop_root_position(env, seen["qpos"], 2), seen["qvel"], *forces]


def ant_outcome(env: Any, step: StepQuantities) -> Outcome:
    """Return the outcome of Ant, which is healthy within a range of height, minus a cost of contact forces."""
    qpos, qvel = step.quantities["qpos"], step.quantities["qvel"]
    low, high = env._healthy_z_range
    reward, terminated = healthy_outcome(env, step, are_finite(qpos, qvel) & (low <= qpos[:, 2]) & (qpos[:, 2] <= high))
    return reward - env._contact_cost_weight * sum_squares(ant_forces(env, step.quantities)), terminated


def humanoid_obs(env: Any, seen: Quantities) -> list[Rows]:
    """Return Humanoid's positions and velocities, and the other quantities that the options include."""
    parts = (
        (env._include_cinert_in_observation, seen["cinert"][:, 1:]),
        (env._include_cvel_in_observation, seen["cvel"][:, 1:]),
        (env._include_qfrc_actuator_in_observation, seen["qfrc_actuator"][:, 6:]),
        (env._include_cfrc_ext_in_observation, seen["cfrc_ext"][:, 1:]),
    )
    return [
        drop_root_position(env, seen["qpos"], 2),
        seen["qvel"],
        *(flatten_rows(part) for included, part in parts if included),
    ]


def mass_center(env: Any, seen: Quantities) -> Rows:
    """Return the x position of the center of mass."""
    mass = env.model.body_mass
    return (seen["xipos"][:, :, 0] * mass).sum(1) / mass.sum()


def humanoid_outcome(env: Any, step: StepQuantities) -> Outcome:
    """Return the outcome of Humanoid, which is healthy within a range of height, minus a clipped contact cost."""
    reward, terminated = healthy_outcome(env, step, is_within(step.quantities["qpos"][:, 2], env._healthy_z_range))
    contact = env._contact_cost_weight * sum_squares(step.quantities["cfrc_ext"])
    return reward - clip(contact, env._contact_cost_range), terminated


def standup_outcome(env: Any, step: StepQuantities) -> Outcome:
    """Return the outcome of HumanoidStandup: height / time step (as in Gymnasium), minus costs, plus 1."""
    height = step.quantities["qpos"][:, 2] / env.model.opt.timestep
    impact = clip(env._impact_cost_weight * sum_squares(step.quantities["cfrc_ext"]), env._impact_cost_range)
    return height - env._ctrl_cost_weight * sum_squares(step.action) - impact + 1, never(height)


def pendulum_outcome(env: Any, step: StepQuantities) -> Outcome:
    """Return 1 while InvertedPendulum stands; terminate when it has fallen."""
    qpos, qvel = step.quantities["qpos"], step.quantities["qvel"]
    fallen = ~are_finite(qpos, qvel) | (abs(qpos[:, 1]) > 0.2)
    return (~fallen).astype(float), fallen


def double_pendulum_obs(env: Any, seen: Quantities) -> list[Rows]:
    """Return the cart's position, sines and cosines of the angles, velocities, and the constraint force of the rail."""
    cart, angles = seen["qpos"][:, :1], seen["qpos"][:, 1:]
    xp, forces = find_numpy(angles), clip(seen["qfrc_constraint"], (-10, 10))[:, :1]
    return [cart, xp.sin(angles), xp.cos(angles), clip(seen["qvel"], (-10, 10)), forces]


def double_pendulum_outcome(env: Any, step: StepQuantities) -> Outcome:
    """Return the outcome of InvertedDoublePendulum: a bonus while it stands, minus costs.

    Costs grow with the tip's distance from its highest point and with the angular velocities.
    """
    x, _, y = step.quantities["site_xpos"][:, 0].T
    v1, v2 = step.quantities["qvel"][:, 1:3].T
    fallen = y <= 1
    lost = 0.01 * x**2 + (y - 2) ** 2 + 1e-3 * v1**2 + 5e-3 * v2**2
    return env._healthy_reward * ~fallen - lost, fallen


def body_positions(env: Any, seen: Quantities, names: Sequence[str]) -> list[Rows]:
    """Return the positions of bodies by their names, shape [n, 3] each."""
    return [seen["xpos"][:, env.model.body(name).id] for name in names]


def pusher_obs(env: Any, seen: Quantities) -> list[Rows]:
    """Return the arm's positions and velocities, and the positions of its tip, the object and the goal."""
    return [seen["qpos"][:, :7], seen["qvel"][:, :7], *body_positions(env, seen, PUSHER_BODIES)]


def pusher_outcome(env: Any, step: StepQuantities) -> Outcome:
    """Return minus the weighted distances from arm to object and from object to goal, minus control cost (Pusher)."""
    arm, thing, goal = body_positions(env, step.quantities, PUSHER_BODIES)
    near, far = norm(thing - arm), norm(thing - goal)
    cost = sum_squares(step.action) * env._reward_control_weight
    return -far * env._reward_dist_weight - cost - near * env._reward_near_weight, never(cost)


def reacher_obs(env: Any, seen: Quantities) -> list[Rows]:
    """Return cosines and sines of the angles, the target, angular velocities, and the fingertip's offset from it."""
    fingertip, target = body_positions(env, seen, REACHER_BODIES)
    angles, away = seen["qpos"][:, :2], fingertip - target
    xp = find_numpy(angles)
    return [xp.cos(angles), xp.sin(angles), seen["qpos"][:, 2:], seen["qvel"][:, :2], away[:, :2]]


def reacher_outcome(env: Any, step: StepQuantities) -> Outcome:
    """Return minus the weighted distance from fingertip to target, minus control cost (Reacher)."""
    fingertip, target = body_positions(env, step.quantities, REACHER_BODIES)
    cost = sum_squares(step.action) * env._reward_control_weight
    return -norm(fingertip - target) * env._reward_dist_weight - cost, never(cost)


TASKS = {
    "Ant-v5": MuJoCoTask(
        ant_obs,
        ant_outcome,
        ("cfrc_ext", "xpos"),
        lambda env, seen: seen["xpos"][:, env.model.body(env._main_body).id, 0],
    ),
    "HalfCheetah-v5": MuJoCoTask(make_state_obs(1), forward_outcome),
    "Hopper-v5": MuJoCoTask(walker_obs, hopper_outcome),
    "Humanoid-v5": MuJoCoTask(humanoid_obs, humanoid_outcome, HUMANOID_READS, mass_center),
    "HumanoidStandup-v5": MuJoCoTask(humanoid_obs, standup_outcome, HUMANOID_READS),
    "InvertedDoublePendulum-v5": MuJoCoTask(
        double_pendulum_obs, double_pendulum_outcome, ("qfrc_constraint", "site_xpos")
    ),
    "InvertedPendulum-v5": MuJoCoTask(lambda env, seen: [seen["qpos"], seen["qvel"]], pendulum_outcome),
    "Pusher-v5": MuJoCoTask(pusher_obs, pusher_outcome, ("xpos",)),
    "Reacher-v5": MuJoCoTask(reacher_obs, reacher_outcome, ("xpos",)),
    "Swimmer-v5": MuJoCoTask(make_state_obs(2), forward_outcome),
    "Walker2d-v5": MuJoCoTask(walker_obs, walker_outcome),
}
