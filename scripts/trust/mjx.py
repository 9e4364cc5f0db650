"""Compare MJX with MuJoCo's C engine on Gymnasium's tasks: one step from the same states.

    python scripts/trust/mjx.py                          all tasks, about ten minutes
    python scripts/trust/mjx.py Hopper-v5 Ant-v5         some tasks
    python scripts/trust/mjx.py --solver fast

States are reached by random actions in Gymnasium (seed 0). The error of an entry of the observation is the absolute
difference, divided by the largest magnitude of the entry among the states, or by 1 if that is smaller. The error of a
reward is the absolute difference, divided by the reward's magnitude, or by 1. A state is with contact if MuJoCo finds
a contact before or after any of the simulation steps of its step.
"""

import argparse
import time
from dataclasses import dataclass

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from evorl.envs.bodies import suppress_warnings
from evorl.envs.mujoco import MJX, MJXState
from evorl.envs.mujoco.tasks import TASKS

NUM_STATES, STEPS_BETWEEN = 100, 4
BOUNDS = {False: 1e-3, True: 1e-2}  # by contact


@dataclass(frozen=True)
class Steps:
    """Steps from many states, leaves [n, ...]."""

    states: MJXState | None
    actions: np.ndarray
    obs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    contact: np.ndarray


def step_in_gymnasium(name, num_states, options=None, seed=0, pgs=True):
    """Step Gymnasium's environment with random actions, and return every fourth step.

    `pgs=False` takes Newton's method where the model asks for PGS, as MJX does.
    """
    with suppress_warnings(mujoco):
        env = gymnasium.make(name, **(options or {})).unwrapped
    model, data, task = env.model, env.data, TASKS[name]
    if not pgs and model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    found = []

    def simulate(ctrl, n_frames):
        env.touched = data.ncon > 0
        data.ctrl[:] = ctrl
        for _ in range(n_frames):
            mujoco.mj_step(model, data)
            env.touched |= data.ncon > 0
        mujoco.mj_rnePostConstraint(model, data)

    env.do_simulation = simulate
    rng, ended = np.random.default_rng(seed), True
    for i in range(num_states * STEPS_BETWEEN):
        if ended:
            env.reset(seed=seed + i)
        track = task.tracked_position
        position = None if track is None else track(env, {k: getattr(data, k)[None] for k in task.reads})[0]
        before = data.qpos.copy(), data.qvel.copy(), data.qacc_warmstart.copy(), position
        action = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
        obs, reward, ended, *_ = env.step(action)
        if i % STEPS_BETWEEN == STEPS_BETWEEN - 1:
            found.append((*before, action, obs, reward, ended, env.touched))
    qpos, qvel, warm, position, *rest = zip(*found, strict=True)
    floats = lambda x: jnp.array(np.array(x), jnp.float32)  # noqa: E731
    where = None if position[0] is None else floats(position)
    steps = jnp.zeros(num_states, jnp.int32)
    return Steps(MJXState(floats(qpos), floats(qvel), None, floats(warm), where, steps), *map(np.array, rest))


def step_on_mjx(env, given):
    """Step MJX once from the same states with the same actions, and return obs, rewards and terminated."""
    step = jax.jit(jax.vmap(lambda state, action: env.step(None, state, action, None)[1]))
    found = step(given.states, given.actions)
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
    parser.add_argument("--entries", action="store_true", help="print the worst entries of the observation")
    given = parser.parse_args()
    print("| task | states | median | max | within 1e-3 | with contact | median | max | within 1e-2 | ends | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name in given.names or MJX.names():
        began = time.perf_counter()
        steps = step_in_gymnasium(name, NUM_STATES, pgs=not given.newton)
        obs, rewards, terminated = step_on_mjx(MJX(name, solver=given.solver), steps)
        ends, seconds = np.mean(terminated == steps.terminated), time.perf_counter() - began
        for label, errors in zip(("obs", "reward"), measure_errors(steps, obs, rewards), strict=True):
            parts = [describe(errors[steps.contact == contact], bound) for contact, bound in BOUNDS.items()]
            print(f"| {name}: {label} {''.join(parts)}| {ends:.0%} | {seconds:.0f} |", flush=True)
        if given.entries:
            apart = np.abs(obs - steps.obs) / np.maximum(1, np.abs(steps.obs).max(0))
            worst = np.argsort(-apart.max(0))[:8]
            print("   ", [(int(i), f"{apart[:, i].max():.1e}") for i in worst])


if __name__ == "__main__":
    main()
