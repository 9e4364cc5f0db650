"""Compare MJX with MuJoCo's C engine on Gymnasium's tasks: one step from the same states.

    python scripts/trust/mjx.py                          all tasks, about 15 minutes
    python scripts/trust/mjx.py Hopper-v5 Ant-v5         some tasks
    python scripts/trust/mjx.py --solver fast
    python scripts/trust/mjx.py --newton Humanoid-v5     with MuJoCo's Newton solver in place of PGS

States are reached by random actions in Gymnasium (seed 0). The error of an entry of the observation is the absolute
difference, divided by the largest magnitude of the entry among the states, or by 1 if that is smaller. The error of a
reward is the absolute difference, divided by the reward's magnitude, or by 1. A state is with contact if MuJoCo finds
a contact before or after any of the simulation steps of its step. Random actions never move Pusher's arm to the object,
so Pusher has a second row, with states in which the arm touches it.
"""

import argparse
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.bodies import suppress_warnings
from evorl.envs.mujoco import MJX, MJXState
from evorl.envs.mujoco.engine import mujoco
from evorl.envs.mujoco.tasks import TASKS

NUM_STATES, STEPS_BETWEEN = 100, 4
BOUNDS = {False: 1e-3, True: 1e-2}  # by contact


@dataclass(frozen=True)
class Steps:
    """Steps from many states, leaves [n, ...]."""

    states: MJXState
    actions: np.ndarray
    obs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    contact: np.ndarray


def step_in_gymnasium(name, num_states, options=None, seed=0, pgs=True):
    """Step Gymnasium's environment with random actions, and return every fourth step.

    `pgs=False` takes Newton's method where the model asks for PGS, as MJX does.
    """
    env, found = make_gymnasium(name, options), []
    if not pgs and env.model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        env.model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    rng, ended = np.random.default_rng(seed), True
    for i in range(num_states * STEPS_BETWEEN):
        if ended:
            env.reset(seed=seed + i)
        step = record_step(name, env, rng)
        ended = step[-2]
        if i % STEPS_BETWEEN == STEPS_BETWEEN - 1:
            found.append(step)
    return stack(found)


def push_in_gymnasium(num_states, seed=0):
    """Step Pusher from states in which its arm touches the object."""
    env, rng, found = make_gymnasium("Pusher-v5"), np.random.default_rng(seed), []
    model, data = env.model, env.data
    of_object = model.geom_bodyid == model.body("object").id
    of_arm = model.geom_type == mujoco.mjtGeom.mjGEOM_CAPSULE
    env.reset(seed=seed)
    while len(found) < num_states:
        qpos, qvel = env.init_qpos.copy(), np.zeros(model.nv)
        qpos[:7] += rng.uniform(-0.2, 0.2, 7)
        qvel[:7] = rng.uniform(-1, 1, 7)
        env.set_state(qpos, qvel)
        angle, distance = rng.uniform(0, 2 * np.pi), rng.uniform(0.03, 0.12)
        apart = (data.body("tips_arm").xpos - data.body("object").xpos)[:2]
        qpos[-4:-2] += (apart + distance * np.array([np.cos(angle), np.sin(angle)]))[::-1]  # y comes first
        data.qacc_warmstart[:] = 0
        env.set_state(qpos, qvel)
        if any(of_object[list(pair)].any() and of_arm[list(pair)].any() for pair in data.contact.geom):
            found.append(record_step("Pusher-v5", env, rng))
    return stack(found)


def make_gymnasium(name, options=None):
    """Create Gymnasium's environment, which keeps in `touched` if its last step was with contact."""
    with suppress_warnings(mujoco):
        env: Any = gymnasium.make(name, **(options or {})).unwrapped
    model, data = env.model, env.data

    def simulate(ctrl, n_frames):
        env.touched = data.ncon > 0
        data.ctrl[:] = ctrl
        for _ in range(n_frames):
            mujoco.mj_step(model, data)
            env.touched |= data.ncon > 0
        mujoco.mj_rnePostConstraint(model, data)

    env.do_simulation = simulate
    return env


def record_step(name, env, rng):
    """Step with a random action, and return the state before it, the action and the outcome."""
    data, task = env.data, TASKS[name]
    track = task.tracked_position
    position = None if track is None else track(env, {k: getattr(data, k)[None] for k in task.reads})[0]
    before = data.qpos.copy(), data.qvel.copy(), data.qacc_warmstart.copy(), position
    action = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
    obs, reward, ended, *_ = env.step(action)
    return *before, action, obs, reward, ended, env.touched


def stack(found):
    """Return steps as arrays."""
    qpos, qvel, warm, position, *rest = zip(*found, strict=True)
    floats = lambda x: jnp.array(np.array(x), jnp.float32)  # noqa: E731
    where = None if position[0] is None else floats(position)
    steps = jnp.zeros(len(found), jnp.int32)
    return Steps(MJXState(floats(qpos), floats(qvel), None, floats(warm), where, steps), *map(np.array, rest))


@cache
def compile_step(env):
    """Return the jitted step of many environments."""
    return jax.jit(jax.vmap(lambda state, action: env.step(jax.random.key(0), state, action, None)[1]))


def step_on_mjx(env, given):
    """Step MJX once from the same states with the same actions, and return obs, rewards and terminated."""
    found = compile_step(env)(given.states, given.actions)
    return np.float64(found.obs), np.float64(found.reward), np.asarray(found.terminated)


def measure_errors(given, obs, rewards):
    """Return the largest error of the observation and the error of the reward for each state, [n] each."""
    scale = np.maximum(1, np.abs(given.obs).max(0))
    of_obs = (np.abs(obs - given.obs) / scale).max(1)
    return of_obs, np.abs(rewards - given.rewards) / np.maximum(1, np.abs(given.rewards))


def describe(errors, bound):
    """Return how many errors there are, their median and maximum, and the share within the bound."""
    if not len(errors):
        return "| 0 | | | "
    return f"| {len(errors)} | {np.median(errors):.1e} | {errors.max():.1e} | {np.mean(errors <= bound):.0%} "


def main():
    """Print a row for each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--solver", default="exact")
    parser.add_argument("--newton", action="store_true", help="compare with MuJoCo's Newton solver in place of PGS")
    given = parser.parse_args()
    print("| task | states | median | max | within 1e-3 | with contact | median | max | within 1e-2 | ends | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name in given.names or MJX.names():
        env, began = MJX(name, solver=given.solver), time.perf_counter()
        report(name, step_in_gymnasium(name, NUM_STATES, pgs=not given.newton), env, began)
        if name == "Pusher-v5":
            report(f"{name}, arm on object", push_in_gymnasium(NUM_STATES), env, time.perf_counter())


def report(label, steps, env, began):
    """Print the rows of some steps: errors of the observations and of the rewards."""
    obs, rewards, terminated = step_on_mjx(env, steps)
    ends, seconds = np.mean(terminated == steps.terminated), time.perf_counter() - began
    for kind, errors in zip(("obs", "reward"), measure_errors(steps, obs, rewards), strict=True):
        parts = [describe(errors[steps.contact == contact], bound) for contact, bound in BOUNDS.items()]
        print(f"| {label}: {kind} {''.join(parts)}| {ends:.0%} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
