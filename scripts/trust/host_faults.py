"""Test host environments under every kind of failure: nothing hangs, no row is lost or invented, nothing is left.

python scripts/trust/host_faults.py                 a hundred faults, and parents that are killed; some minutes
python scripts/trust/host_faults.py --minutes 30    callbacks of two devices with one thread each, for this time
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
from collections import Counter
from functools import cache
from pathlib import Path

import jax
import numpy as np
from host_told import KINDS

from evorl import tree
from evorl.agents import PPO
from evorl.envs.host import HostEnv, pool_registry
from evorl.vector_env import EnvBatch, ResetStarts, RolloutPlan, TransitionStore, rollout
from evorl.workflows.trajectories import Trajectories

TIMEOUT, SLACK = 2.0, 5.0
NUM_ENVS, STEPS = 6, 40
IN_WORKERS = ("kill", "exit", "hang", "spin")  # faults that this process would not survive


@cache
def program(env):
    """Compile STEPS random steps of NUM_ENVS environments; it returns the rows, their mask, and the restarts."""
    world = EnvBatch(env, env.default_params, None, NUM_ENVS)

    def at_random(obs, memory, keys):
        del obs
        return jax.vmap(env.action_space.sample)(keys), memory, {}

    def row():
        keys = jax.random.split(jax.random.key(0), NUM_ENVS)
        envs = world.init_envs(world.reset(keys))
        return tree.index(world.interact(at_random, envs, keys)[1], 0)

    @jax.jit
    def run(key):
        nothing = Trajectories.empty(jax.eval_shape(row), STEPS, NUM_ENVS)
        store = TransitionStore(8 if env.batch else STEPS, nothing, Trajectories.add)
        _, stats, kept = rollout(world, at_random, RolloutPlan(ResetStarts(), steps=STEPS), None, key, store)
        return kept.transitions, kept.rows.weight != 0, stats.restarts

    return run.lower(jax.random.key(0)).compile()


def answered(told):
    """Return the environments' answers: observation, step, action and reward."""
    lines = [line for path in told.glob("answers-*") for line in path.read_text().splitlines()]
    return sorted(tuple(map(int, line.split())) for line in lines)


def learned(rows, mask):
    """Return the same values of the valid rows."""
    reward, action = np.asarray(rows.reward)[mask], np.asarray(rows.action)[mask]
    seen = np.asarray(rows.next_obs)[mask].astype(int)
    return sorted(tuple(map(int, (*x, a, r))) for x, a, r in zip(seen, action, reward, strict=True))


def children(of=None):
    """Return the process ids of the children of this process, or of another one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == (of or os.getpid()):
            found.append(int(path.parent.name))
    return found


def running(pid):
    """Return whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def try_one(kind, at, workers, batch, restart, told, key):
    """Cause one fault; return the seconds, the restarts and a list of errors."""
    for path in told.iterdir():
        path.unlink()
    env = HostEnv("host_told:Faulty-v0", {"folder": str(told)}, workers, TIMEOUT, restart, batch=batch)
    run = program(env)
    (told / "fault").write_text(json.dumps({"kind": kind, "at": at}))
    before = len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))
    began = time.perf_counter()
    rows, mask, restarts = jax.device_get(run(jax.random.key(key)))
    took, fault = time.perf_counter() - began, pool_registry.find_fault()
    pool_registry.close_all()
    wrong = []
    if not (told / "claimed").exists():
        wrong.append(f"it did not fail, but {fault}")
    if took > TIMEOUT + SLACK:
        wrong.append(f"took {took:.1f} s")
    known, under_way = Counter(learned(rows, mask)), Counter(answered(told))
    under_way.subtract(known)
    if min(under_way.values(), default=0) < 0 or under_way.total() > (NUM_ENVS if batch else 0):
        wrong.append(f"{known.total()} rows are learned, {len(answered(told))} were answered")
    if restart and (fault is not None or (not batch and mask.sum() + restarts.sum() != NUM_ENVS * STEPS)):
        wrong.append(f"did not go on: {fault}")
    unseen = batch and kind in ("hang", "spin")  # a batch does not wait for such an environment
    if not restart and not unseen and (fault is None or (not batch and mask[-1].any())):
        wrong.append("went on")
    if children():
        wrong.append("left processes")
    if before != (len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))):
        wrong.append("left files open")
    return took, int(restarts.sum()), wrong


PARENT = """
import sys, jax
from evorl.envs.host import HostEnv, pool_registry
env = HostEnv("host_told:Faulty-v0", {"folder": sys.argv[1]}, 2)
keys, params = jax.random.split(jax.random.key(0), 4), env.default_params
states, _ = jax.vmap(env.reset, (0, None))(keys, params)
print(*(process.popen.pid for process in pool_registry.get_pool(env).places._processes.values()), flush=True)
step = jax.jit(jax.vmap(env.step, (0, 0, 0, None)))
while True:
    states, _ = step(keys, states, jax.numpy.zeros(4, int), params)
    states = jax.vmap(env.reset, (0, None))(keys, params)[0]
"""


def kill_one(kind, told):
    """Kill a parent whose workers play or hang; return the seconds until they have ended too, and a list of errors."""
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
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        time.sleep(random.uniform(0.5, 1.5))
        parent.send_signal(signal.SIGKILL)
    began = time.perf_counter()
    while any(map(running, workers)):
        if time.perf_counter() - began > SLACK:
            return SLACK, ["workers were still there"]
        time.sleep(0.01)
    return time.perf_counter() - began, [] if len(workers) == 2 else ["had no workers"]


def interrupt_one(signals):
    """Send signals to a training; return the seconds until it and its workers have ended, and a list of errors."""
    arguments = ["agent=ppo", "env=gymnasium/CartPole-v1", "env.workers=2", "run_dir=run", "env_steps=100000000"]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "evorl.train", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])},
        )
        assert process.stdout is not None
        while "evaluation" not in process.stdout.readline():
            pass
        workers = children(process.pid)
        began = time.perf_counter()
        for number in signals:
            process.send_signal(number)
            time.sleep(0.2)
        said = process.communicate(timeout=60)[0].splitlines()
        while any(map(running, workers)) and time.perf_counter() - began < 60:
            time.sleep(0.01)
        took, wrong = time.perf_counter() - began, []
        saved = "stopped and saved; resume: python -m evorl.train resume=run"
        last = (saved, saved.replace("and saved", "without saving"))[: len(signals)]  # the first may be quicker
        killed = signals == [signal.SIGKILL]
        if process.returncode != (-signal.SIGKILL if killed else 130) or not (killed or said[-1] in last):
            wrong.append(f"ended with {process.returncode}: {said[-1:]}")
        if len(workers) != 2 or any(map(running, workers)):
            wrong.append(f"workers: {len(workers)}, some of which were still there")
    return took, wrong


def main():
    """Print a table; return True if anything is wrong."""
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
            batch = draw.choice((0, 3)) if workers else 0
            took, restarts, wrong = try_one(kind, at, workers, batch, restart, told, i)
            found.setdefault((kind, restart), []).append((took, restarts))
            for line in wrong:
                bad += 1
                print(f"{kind} at {at}, {workers} workers, batch={batch}, restart={restart}: {line}", flush=True)
        print("| fault | restart | tried | longest, s | environments that restarted |\n|---|---|---|---|---|")
        for (kind, restart), all_of_it in sorted(found.items()):
            times, restarts = zip(*all_of_it, strict=True)
            print(f"| {kind} | {str(restart).lower()} | {len(times)} | {max(times):.1f} | {sum(restarts)} |")
        for kind in ("", "hang", "spin"):
            took, wrong = kill_one(kind, told)
            bad += len(wrong)
            print(f"parent killed, workers that {kind or 'play'}: gone after {took:.2f} s", *wrong, flush=True)
    for signals in ([signal.SIGINT], [signal.SIGINT] * 2, [signal.SIGKILL]):
        took, wrong = interrupt_one(signals)
        bad += len(wrong)
        print(f"training with {', '.join(one.name for one in signals)}: gone after {took:.2f} s", *wrong, flush=True)
    print(f"{bad} wrong")
    return bool(bad)


def soak(minutes):
    """Run callbacks of two devices with one thread each, while both compute matrix products, for this time."""
    os.environ["PJRT_NPROC"] = "1"
    jax.config.update("jax_num_cpu_devices", 2)
    from evorl.training.fit import fit
    from evorl.training.progress import Budget
    from evorl.workflows import OnPolicy

    env = HostEnv("CartPole-v1")
    agent = PPO()
    workflow = OnPolicy(env, agent, num_envs=4096, num_steps=4, batch_size=2048, eval_episodes=16)
    result = fit(workflow, budget=Budget(minutes=minutes), num_seeds=2, evaluations=20, keep_rows=False)
    done = result.progress
    calls = 2 * done.iteration * 4
    print(f"{minutes:g} minutes, {calls:,} calls of 4,096 rows: no hang")
    return 0


if __name__ == "__main__":
    sys.exit(main())
