"""Compare MuJoCo's C engine in a jitted program with Gymnasium, EnvPool, Brax and MJX: steps per second of one core.

    python scripts/benchmarks/mujoco_engine.py                     about four minutes
    python scripts/benchmarks/mujoco_engine.py --envpool PYTHON    also EnvPool, which that interpreter has
    python scripts/benchmarks/mujoco_engine.py --mjx               MJX with both solvers, six minutes

Seconds are CPU time of all threads of the process. Each pair is measured in turns; the ratio is the median of the
rounds' ratios.
"""

import argparse
import subprocess
import time
from importlib.resources import files
from statistics import median

import gymnasium
import jax
import mujoco
import numpy as np
from gymnasium.vector import SyncVectorEnv

from evorl.envs.bodies import suppress_warnings
from evorl.envs.mujoco import MJX, MuJoCo
from evorl.envs.suites.brax import Brax

NUM_ENVS = 64
ENVPOOL = """
import sys, time, envpool, numpy as np
name, num_envs, steps = sys.argv[1], *map(int, sys.argv[2:])
envs = envpool.make(name, env_type="gymnasium", num_envs=num_envs, num_threads=1)
envs.reset()
space = envs.action_space
shape, rng = (steps, num_envs, *space.shape), np.random.default_rng(0)
actions = rng.uniform(space.low, space.high, shape)
envs.step(actions[0])
began = time.process_time()
for action in actions:
    envs.step(action)
print(num_envs * steps / (time.process_time() - began))
"""


def timed(run, steps):
    """Return the steps per second of CPU time."""
    began = time.process_time()
    run()
    return NUM_ENVS * steps / (time.process_time() - began)


def alone(name, steps):
    """Return a measurement of Gymnasium's environments, stepped one after the other."""
    with suppress_warnings(mujoco):
        many = SyncVectorEnv([lambda: gymnasium.make(name) for _ in range(NUM_ENVS)])
    many.reset(seed=0)
    actions = drawn(many.single_action_space, steps)

    def run():
        for action in actions:
            many.step(action)

    return lambda: timed(run, steps)


def drawn(space, steps):
    shape = steps, NUM_ENVS, *space.shape
    return np.random.default_rng(0).uniform(space.low, space.high, shape).astype(np.float32)


def jitted(env, steps):
    """Return a measurement of a jitted scan over all environments, with actions drawn beforehand."""
    actions = drawn(env.action_space, steps)

    @jax.jit
    def program(states, actions):
        def step(states, action):
            states, timestep = jax.vmap(env.step, (None, 0, 0, None))(jax.random.key(0), states, action, ())
            return states, (timestep.reward, timestep.obs.sum(1))

        return jax.lax.scan(step, states, actions)

    keys = jax.random.split(jax.random.key(0), NUM_ENVS)
    states, _ = jax.jit(jax.vmap(env.reset, (0, None)))(keys, ())
    jax.block_until_ready(program(states, actions))
    return lambda: timed(lambda: jax.block_until_ready(program(states, actions)), steps)


def envpool(python, name, steps):
    """Return a measurement of EnvPool's own loop in another interpreter."""

    def rate():
        said = subprocess.run([python, "-c", ENVPOOL, name, str(NUM_ENVS), str(steps)], capture_output=True, check=True)
        return float(said.stdout.split()[-1])

    return rate


def compared(label, first, second, repeats):
    """Print the steps per CPU second of both and their ratio, second to first."""
    rates = [(first(), second()) for _ in range(repeats)]
    a, b = (median(column) for column in zip(*rates, strict=True))
    print(f"| {label} | {a:,.0f} | {b:,.0f} | {median(y / x for x, y in rates):.2f} |", flush=True)


def compared_with_mjx(name, repeats, steps=10):
    """Print the rows of MJX on a task."""
    exact, fast, engine = (jitted(env, steps) for env in (MJX(name), MJX(name, solver="fast"), MuJoCo(name, threads=1)))
    compared(f"{name}: MJX exact, MJX fast", exact, fast, repeats)
    compared(f"{name}: MJX exact, MuJoCo C", exact, engine, repeats)


def main():
    """Print the table of all pairs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--envpool", metavar="PYTHON")
    parser.add_argument("--mjx", action="store_true")
    given = parser.parse_args()
    cheetah, ant = "HalfCheetah-v5", "Ant-v5"
    print("| 64 environments, steps a CPU second | first | second | ratio |\n|---|---|---|---|")
    if given.mjx:
        for name in (cheetah, "Hopper-v5", ant):
            compared_with_mjx(name, given.repeats)
        return
    ours = jitted(MuJoCo(cheetah, threads=1), 500)
    compared("HalfCheetah: SyncVectorEnv alone, in jit", alone(cheetah, 500), ours, given.repeats)
    if given.envpool:
        compared("HalfCheetah: EnvPool alone, in jit", envpool(given.envpool, cheetah, 500), ours, given.repeats)
    compared("HalfCheetah: Brax generalized in jit, in jit", jitted(Brax("halfcheetah"), 20), ours, given.repeats)
    ours, brax = jitted(MuJoCo(ant, threads=1), 100), jitted(Brax("ant"), 20)
    compared("Ant: SyncVectorEnv alone, in jit", alone(ant, 100), ours, given.repeats)
    compared("Ant: Brax generalized in jit, in jit", brax, ours, given.repeats)
    its = {"xml_file": str(files("brax.envs") / "assets" / "ant.xml")}
    ours = jitted(MuJoCo(ant, its, threads=1), 100)
    compared("Brax's model of the ant: Brax generalized in jit, in jit", brax, ours, given.repeats)


if __name__ == "__main__":
    main()
