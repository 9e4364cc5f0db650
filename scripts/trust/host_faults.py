"""Environments on the host that fail in every way: nothing hangs, no row is lost or invented, nothing is left behind.

python scripts/trust/host_faults.py                 a hundred faults, and parents that are killed; some minutes
python scripts/trust/host_faults.py --minutes 30    callbacks of two devices with one thread each, for so long
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from host_told import KINDS

from evorl import tree
from evorl.envs.host import HostEnv, pools
from evorl.vector_env import FromParams, Plan, Store, World, play

TIMEOUT, SLACK = 2.0, 5.0
SLOTS, STEPS = 6, 40
IN_WORKERS = ("kill", "exit", "hang", "spin")  # what this process would not survive


@cache
def program(env):
    """Plays STEPS steps of SLOTS slots at random; returns the rows, which of them are there, and the restarts."""
    world = World(env, env.default_params, (), SLOTS)

    def at_random(obs, memory, keys):
        del obs
        return jax.vmap(env.action_space.sample)(keys), memory, {}

    def row():
        keys = jax.random.split(jax.random.key(0), SLOTS)
        slots = world.slots(world.reset(keys))
        return world.interact(at_random, slots, keys)[1]

    @jax.jit
    def run(key):
        nothing = tree.broadcast(tree.zeros(jax.eval_shape(row)), STEPS), jnp.zeros((STEPS, SLOTS), bool)
        store = Store(STEPS, nothing, lambda _, rows, mask: (rows, mask))
        _, stats, (rows, mask) = play(world, at_random, Plan(FromParams(), steps=STEPS), None, key, store)
        return rows, mask, stats.restarts

    return run.lower(jax.random.key(0)).compile()


def answered(told):
    """What the environments have answered: what was seen, the step, the action and the reward."""
    lines = [line for path in told.glob("answers-*") for line in path.read_text().splitlines()]
    return sorted(tuple(map(int, line.split())) for line in lines)


def learned(rows, mask):
    """The same of the rows that are there."""
    reward, action = np.asarray(rows.reward)[mask], np.asarray(rows.action)[mask]
    seen = np.asarray(rows.next_obs)[mask].astype(int)
    return sorted(tuple(map(int, (*x, a, r))) for x, a, r in zip(seen, action, reward, strict=True))


def children():
    """Processes of this one that are there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == os.getpid():
            found.append(int(path.parent.name))
    return found


def running(pid):
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def try_one(kind, at, workers, restart, told, key):
    """One fault; returns seconds, restarts and what is wrong."""
    for path in told.iterdir():
        path.unlink()
    env = HostEnv("host_told:Told-v0", {"told": str(told)}, workers, TIMEOUT, restart)
    run = program(env)
    (told / "fault").write_text(json.dumps({"kind": kind, "at": at}))
    before = len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))
    began = time.perf_counter()
    rows, mask, restarts = jax.device_get(run(jax.random.key(key)))
    took, fault = time.perf_counter() - began, pools.fault()
    pools.close()
    wrong = []
    if not (told / "claimed").exists():
        wrong.append(f"it did not fail, but {fault}")
    if took > TIMEOUT + SLACK:
        wrong.append(f"took {took:.1f} s")
    if learned(rows, mask) != answered(told):
        wrong.append(f"{len(learned(rows, mask))} rows are learned, {len(answered(told))} were answered")
    if restart and (fault is not None or mask.sum() + restarts.sum() != SLOTS * STEPS):
        wrong.append(f"did not go on: {fault}")
    if not restart and (fault is None or mask[-1].any()):
        wrong.append("went on")
    if children():
        wrong.append("left processes")
    if before != (len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))):
        wrong.append("left files open")
    return took, int(restarts.sum()), wrong


PARENT = """
import sys, jax
from evorl.envs.host import HostEnv, pools
env = HostEnv("host_told:Told-v0", {"told": sys.argv[1]}, 2)
keys, params = jax.random.split(jax.random.key(0), 4), env.default_params
states, _ = jax.vmap(env.reset, (0, None))(keys, params)
print(*(process.popen.pid for process in pools.of(env).places._processes.values()), flush=True)
step = jax.jit(jax.vmap(env.step, (0, 0, 0, None)))
while True:
    states, _ = step(keys, states, jax.numpy.zeros(4, int), params)
    states = jax.vmap(env.reset, (0, None))(keys, params)[0]
"""


def kill_one(kind, told):
    """Kills a parent whose workers play, or hang; returns seconds until they had gone too, and what is wrong."""
    for path in told.iterdir():
        path.unlink()
    (told / "fault").write_text(json.dumps({"kind": kind, "at": 1}))
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(told)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    ) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        time.sleep(random.uniform(0.5, 1.5))
        parent.send_signal(signal.SIGKILL)
    began = time.perf_counter()
    while any(map(running, workers)):
        if time.perf_counter() - began > SLACK:
            return SLACK, ["workers were still there"]
        time.sleep(0.01)
    return time.perf_counter() - began, [] if len(workers) == 2 else ["had no workers"]


def main():
    """Prints a table; exits 1 where anything is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=0.0)
    given = parser.parse_args()
    if given.minutes:
        return soak(given.minutes)
    draw, found, bad = random.Random(0), {}, 0
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder)
        for i in range(given.faults):
            kind, restart = KINDS[i % len(KINDS)], bool(i // len(KINDS) % 2)
            workers = draw.choice((1, 2, 3)) if kind in IN_WORKERS else draw.choice((0, 1, 3))
            at = draw.randint(1, 3 if kind in ("constructor", "reset") else 30)
            took, restarts, wrong = try_one(kind, at, workers, restart, told, i)
            found.setdefault((kind, restart), []).append((took, restarts))
            for line in wrong:
                bad += 1
                print(f"{kind} at {at}, {workers} workers, restart={restart}: {line}", flush=True)
        print("| fault | restart | tried | longest, s | slots that began anew |\n|---|---|---|---|---|")
        for (kind, restart), all_of_it in sorted(found.items()):
            times, restarts = zip(*all_of_it, strict=True)
            print(f"| {kind} | {str(restart).lower()} | {len(times)} | {max(times):.1f} | {sum(restarts)} |")
        for kind in ("", "hang", "spin"):
            took, wrong = kill_one(kind, told)
            bad += len(wrong)
            print(f"parent killed, workers that {kind or 'play'}: gone after {took:.2f} s", *wrong, flush=True)
    print(f"{bad} wrong")
    return bool(bad)


def soak(minutes):
    """Callbacks of two devices with a thread each, in the middle of products on both, for so long."""
    os.environ["PJRT_NPROC"] = "1"
    jax.config.update("jax_num_cpu_devices", 2)
    from evorl.agents import PolicyGradient
    from evorl.training.fit import fit
    from evorl.training.progress import Budget
    from evorl.workflows import OnPolicy

    env = HostEnv("CartPole-v1")
    agent = PolicyGradient(env.observation_space, env.action_space)
    workflow = OnPolicy(env, agent, num_envs=4096, num_steps=4, batch_size=2048, eval_episodes=16)
    result = fit(workflow, budget=Budget(minutes=minutes), num_seeds=2, evaluations=20, keep_rows=False)
    done = result.progress
    calls = 2 * done.iteration * 4
    print(f"{minutes:g} minutes, {calls:,} calls of 4,096 rows: no hang")
    return 0


if __name__ == "__main__":
    sys.exit(main())
