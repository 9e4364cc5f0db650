"""Compare the speed of host environments inside a jitted program with Gymnasium's SyncVectorEnv alone.

    python scripts/benchmarks/host.py        about four minutes

Each pair is measured in turns, so that other load on the machine affects both; the ratio is the median of the rounds'
ratios.
"""

# pyright: reportMissingImports=false

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import gymnasium
import jax
import numpy as np
from gymnasium.vector import SyncVectorEnv

from evorl.envs.host import EnvPool, HostEnv, pool_registry
from evorl.vector_env import EnvBatch, ResetStarts, RolloutPlan, TransitionStore, rollout
from evorl.vector_env.host_rollout import allocate_pending_step

NUM_ENVS = 64


def alone(name, options, steps):
    """Return a function that steps Gymnasium's SyncVectorEnv, with actions drawn beforehand, and returns its steps."""
    envs = SyncVectorEnv([lambda: gymnasium.make(name, **options) for _ in range(NUM_ENVS)])
    envs.reset(seed=0)
    actions = [envs.action_space.sample() for _ in range(steps)]

    def run():
        for action in actions:
            envs.step(action)
        return NUM_ENVS * steps

    return run


def pooled(name, steps):
    """Return a function that steps EnvPool, with actions drawn beforehand, and returns its steps."""
    import envpool

    envs = envpool.make(name, env_type="gymnasium", num_envs=NUM_ENVS)
    envs.reset()
    actions = [np.array([envs.action_space.sample() for _ in range(NUM_ENVS)]) for _ in range(steps)]

    def run():
        for action in actions:
            envs.step(action)
        return NUM_ENVS * steps

    return run


def jitted(name, options, steps, workers=0, batch=0):
    """Return a function that plays a Gymnasium environment inside a jitted program.

    Actions are random, and episodes restart.
    """
    return in_program(HostEnv(name, options, workers, batch=batch), steps, batch)


def in_program(env, steps, batch=0):
    """Return a function that plays any host environment in a jitted program and returns its steps."""
    world = EnvBatch(env, env.default_params, None, NUM_ENVS)

    def at_random(obs, memory, keys):
        del obs
        return jax.vmap(env.action_space.sample)(keys), memory, {}

    @jax.jit
    def program(key, envs):
        store = TransitionStore(-(-steps // 8) if batch else min(steps, 100), None, lambda *_: None)
        return rollout(world, at_random, RolloutPlan(ResetStarts(), envs is None, steps=steps), envs, key, store)[:2]

    begin = jax.jit(lambda keys: allocate_pending_step(world, at_random, world.init_envs(world.reset(keys))))
    envs = begin(jax.random.split(jax.random.key(0), NUM_ENVS))
    compiled = jax.jit(lambda envs, key: program(key, envs)).lower(envs, jax.random.key(0)).compile()
    held = [envs]

    def run():
        after, stats = jax.block_until_ready(compiled(held[0], jax.random.key(1)))
        held[0] = after
        assert pool_registry.find_fault() is None
        taken = int(stats.steps.sum())
        assert batch or taken == NUM_ENVS * steps
        return taken

    return run


def compared(label, first, second, repeats):
    """Print the steps per second of both functions and their ratio, second to first."""
    rates = []
    for run in (first, second):
        run()
    for _ in range(repeats):
        pair = []
        for run in (first, second):
            began = time.perf_counter()
            pair.append(run() / (time.perf_counter() - began))
        rates.append(pair)
    a, b = (median(column) for column in zip(*rates, strict=True))
    print(f"| {label} | {a:,.0f} | {b:,.0f} | {median(y / x for x, y in rates):.2f} |", flush=True)


@contextmanager
def busy(cores):
    """Run `cores` processes that only use the CPU."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def main():
    """Print the table of all pairs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    cartpole, slow = "CartPole-v1", "host_slow:Slow-v0"
    print("| 64 environments, steps/s | first | second | ratio |\n|---|---|---|---|")
    pair = alone(cartpole, {}, 1000), jitted(cartpole, {}, 1000)
    compared("CartPole: SyncVectorEnv alone, in jit", *pair, repeats)
    work = {"work": 100e-6}
    pair = alone(slow, work, 100), jitted(slow, work, 100)
    compared("100 us of work: SyncVectorEnv alone, in jit", *pair, repeats)
    pair = jitted(cartpole, {}, 300), jitted(cartpole, {}, 300, 2)
    compared("CartPole: in this process, 2 workers", *pair, repeats)
    with busy(2):
        compared("the same on two busy cores", *pair, repeats)
    pool_registry.close_all()
    sleep = {"sleep": 2e-3}
    pair = jitted(slow, sleep, 10), jitted(slow, sleep, 10, 8)
    compared("2 ms of sleep: in this process, 8 workers", *pair, repeats)
    pool_registry.close_all()
    with tempfile.TemporaryDirectory() as folder:
        for batch, steps in ((0, 3), (32, 30)):
            slower = sleep | {"first": str(Path(folder) / f"{batch}")}
            pair = jitted(slow, sleep, 30, 8), jitted(slow, slower, steps, 8, batch)
            compared(f"8 workers, 2 ms of sleep: all alike, one environment 200 ms, batch {batch}", *pair, repeats)
            pool_registry.close_all()
    if importlib.util.find_spec("envpool"):
        for name, steps in (("CartPole-v1", 1000), ("Pong-v5", 50)):
            pair = pooled(name, steps), in_program(EnvPool(name), steps)
            compared(f"EnvPool {name}: alone, in jit", *pair, repeats)
            pool_registry.close_all()


if __name__ == "__main__":
    main()
