"""Test evorl on a GPU: one small training of every workflow family, then timings of jobs that run alone on the GPU.

python scripts/gpu.py OUT                 all stages; rows are appended to OUT/rows.jsonl as they come
python scripts/gpu.py OUT --only S1 S6    some stages
python scripts/gpu.py OUT --only "S1 dqn" some jobs
python scripts/gpu.py OUT --tiny          a rehearsal on a CPU, at tiny sizes
python scripts/gpu.py OUT --against CPU   compare the trainings with those of another folder; nothing runs

| stage | content |
|---|---|
| S0 | versions, device, and its limits: copies, matrix products in default and in highest precision |
| S1 | three iterations of every workflow family by `python -m evorl.train` |
| S2 | PPO on Brax's ant (spring), 4,096 environments x 16 steps |
| S3 | PBT of PPO with 1 and 64 members |
| S5 | one PPO, one PLR and one ACCEL iteration on mazes |
| S6 | TD3 and SAC with 2 and 1,024 environments, also in a user's own loop, and their physics; 1 and 64 seeds of PPO |

Losses of two devices are comparable if both run with JAX_DEFAULT_MATMUL_PRECISION=highest.

Every job runs in its own process, with a deadline. Timed jobs compile in parallel, at the same time as the trainings of
S1, and wait. When all other jobs are done, they run sequentially. A job whose row is in the file is not run again.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from evorl.agents import PPO
from evorl.parts import resolve_numbers

SMALL_OFF = "agent.workflow.random_steps=64 agent.workflow.capacity=1_000"
FAMILIES = {
    "accel": "agent=accel env=maze",
    "paired": "agent=paired env=maze",
    "puffer": "agent=puffer env=cartpole",
    "learnable": "agent=learnable env=maze",
    "plr": "agent=plr env=maze",
    "pga_me": "agent=pga_me env=feet",
    "low_rank_es": "agent=low_rank_es env=cartpole",
    "seeded_es": "agent=seeded_es env=cartpole",
    "nfsp": "agent=nfsp env=kuhn",
    "league": "agent=league env=kuhn",
    "psro_exact": "agent=psro_exact env=kuhn",
    "xfp": "agent=xfp env=kuhn",
    "impala": "agent=impala env=cartpole",
    "ppo_s5": "agent=ppo core=s5 env=cartpole",
    "ppo_lstm": "agent=ppo core=lstm env=memory_chain",
    "openes": "agent=openes env=cartpole",
    "cma_me": "agent=cma_me env=feet",
    "novelty": "agent=novelty env=point_maze",
    "arcade": "agent=ppo env=arcade/breakout",
    "dqn": f"agent=dqn env=cartpole {SMALL_OFF}",
    "sac": f"agent=sac env=pendulum {SMALL_OFF}",
    "cemrl": f"agent=cemrl env=pendulum {SMALL_OFF}",
    "erl": f"agent=erl env=pendulum {SMALL_OFF}",
    "pbt": "agent=pbt agent/inner=ppo env=cartpole",
    "pbt_cso": "agent=pbt_cso agent/inner=ppo env=cartpole",
    "meta_es": "agent=meta_es agent/inner=ppo env=cartpole",
    "mappo": "agent=mappo env=mpe/spread",
    "qmix": "agent=qmix env=two_step",
    "nsga2": "agent=search problem=zdt1",
    "host": "agent=ppo env=gymnasium env.name=CartPole-v1",
    "seeds": "agent=ppo env=cartpole num_seeds=64",
}


def ceilings(tiny: bool) -> dict[str, Any]:
    """Measure the limits of the device: TFLOP/s of matrix products, GB/s of copies."""
    import jax
    import jax.numpy as jnp

    size, count = (256, 2) if tiny else (4096, 50)
    x, found = jnp.ones((size, size)), {}
    for precision in ("default", "highest"):
        product = partial(jnp.dot, precision=precision)
        many = jax.jit(
            lambda x, product=product: jax.lax.fori_loop(0, count, lambda i, y: product(y, x) / x.shape[0], x)
        )
        jax.block_until_ready(many(x))
        began = time.perf_counter()
        jax.block_until_ready(many(x))
        found[f"tflops_{precision}"] = 2 * size**3 * count / (time.perf_counter() - began) / 1e12
    y = jnp.ones(1 << (20 if tiny else 28))
    add = jax.jit(lambda y: y + 1, donate_argnums=0)
    y = jax.block_until_ready(add(y))
    began = time.perf_counter()
    for _ in range(10):
        y = add(y)
    jax.block_until_ready(y)
    return found | {"copy_gbs": 10 * 2 * y.nbytes / (time.perf_counter() - began) / 1e9}


def ant(tiny: bool, envs: int = 4096, batch: int = 8192) -> Any:
    from evorl import Brax, OnPolicy

    env = Brax("fast") if tiny else Brax("ant", backend="spring")
    agent = PPO()
    envs, batch = (16, 64) if tiny else (envs, batch)
    return OnPolicy(env, agent, num_envs=envs, num_steps=16, num_epochs=4, batch_size=batch)


def pbt(tiny: bool, members: int) -> Any:
    from evorl.population import NoSelection, Truncation
    from evorl.priors import Uniform
    from evorl.workflows import PBT, Vmapped

    agent = PPO(clip=Uniform(0.1, 0.3))
    inner = replace(ant(tiny, 64, 256), agent=agent, eval_episodes=4)
    selection = NoSelection() if members == 1 else Truncation(0.25)
    return PBT(Vmapped(inner, members), selection, steps_per_generation=16, search=("clip",))


def configured(tiny: bool, options: str) -> Any:
    from evorl.training import runs
    from evorl.training.configuration import config

    where = "agent" if "maze" not in options or "=ppo" in options else "agent.inner"
    small = f"{where}.workflow.num_envs={8 if where == 'agent' else 2}" if tiny else "iterations=1"
    return runs.build(config.compose_config([*options.split(), small]))[0]


def off_policy(which: str, envs: int, backend: str = "generalized") -> Any:
    """Return TD3 or SAC: an iteration is one step of each environment and two updates."""
    from evorl import TD3, Brax, OffPolicy
    from evorl.agents import SAC

    env = Brax("inverted_pendulum", backend=backend)
    agent = {"td3": TD3, "sac": SAC}[which]()
    workflow = OffPolicy(env, agent, num_envs=envs, num_steps=1, num_updates=2)
    return replace(workflow, capacity=200 * envs, random_steps=2 * envs)


def as_trained(workflow: Any, seeds: int, count: int) -> Callable[[], Any]:
    """Compile `Program` as trainings do, and return a function that runs it.

    Each call runs `count` iterations and returns their metrics.
    """
    import jax

    from evorl.training.devices import compiler_options
    from evorl.training.program import Program, make_run_args

    program = Program(workflow, list(range(seeds)), chunk=count, side_by_side=True)
    traced = program.trace(resolve_numbers(workflow))
    run = traced.run.compile(compiler_options())
    state = traced.init.lower().compile()(program.keys, resolve_numbers(workflow))
    first = 0

    def call() -> Any:
        nonlocal state, first
        state, metrics, _ = run(state, program.keys, *make_run_args(first, count, False))
        first += count
        return jax.tree.map(lambda x: x[..., -1] if x.ndim else x, metrics)

    return call


def physics(backend: str, envs: int, count: int) -> Callable[[], Any]:
    """Compile `count` steps of inverted_pendulum alone, without automatic resets."""
    import jax
    import jax.numpy as jnp

    from evorl import Brax

    env = Brax("inverted_pendulum", backend=backend)
    keys = jax.random.split(jax.random.key(0), envs)
    state = jax.jit(jax.vmap(env.reset, (0, None)))(keys, env.default_params)[0]
    actions = jnp.zeros((envs, *env.action_space.shape))

    def step(state: Any, _: None) -> tuple[Any, None]:
        return jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, env.default_params)[0], None

    run = jax.jit(lambda state: jax.lax.scan(step, state, length=count)[0])

    def call() -> Any:
        jax.block_until_ready(run(state))
        return {"env_steps": jnp.int32(envs)}

    return call


def in_a_loop(workflow: Any, count: int) -> Callable[[], Any]:
    """Compile one step followed by a loop of steps, as in a user's own program."""
    import jax

    def run(state: Any, key: Any) -> Any:
        def again(i: Any, loop: Any) -> Any:
            return workflow.step(loop[0], jax.random.fold_in(key, i))

        return jax.lax.fori_loop(1, count, again, workflow.step(state, key))

    state = jax.jit(workflow.init)(jax.random.key(42))
    compiled, key = jax.jit(run, donate_argnums=0).lower(state, jax.random.key(0)).compile(), jax.random.key(7)

    def call() -> Any:
        nonlocal state, key
        key = jax.random.fold_in(key, 1)
        state, metrics = compiled(state, key)
        return metrics

    return call


def timings() -> dict[str, tuple[Callable[[bool], Callable[[], Any]], int]]:
    """Return the timed jobs: for each, a function that compiles its call, and the iterations per call."""
    found: dict[str, tuple[Callable[[bool], Callable[[], Any]], int]] = {
        "S2 PPO ant": (lambda tiny: as_trained(ant(tiny), 1, 1), 1)
    }
    for members in (1, 64):
        found[f"S3 PBT of {members}"] = (lambda tiny, n=members: as_trained(pbt(tiny, 2 if tiny else n), 1, 1), 1)
    for agent in ("ppo", "plr", "accel"):
        found[f"S5 {agent} maze"] = (
            lambda tiny, agent=agent: as_trained(configured(tiny, f"agent={agent} env=maze"), 1, 1),
            1,
        )
    for which in ("td3", "sac"):
        for envs in (2, 1024):
            found[f"S6 {which} {envs} envs"] = (
                lambda tiny, which=which, n=envs: as_trained(off_policy(which, 2 if tiny else n), 1, 64),
                64,
            )
        found[f"S6 {which} 2 envs, user's loop"] = (
            lambda tiny, which=which: in_a_loop(off_policy(which, 2), 64),
            64,
        )
    for backend in ("generalized", "spring"):
        found[f"S6 physics {backend}, 2 envs"] = (lambda tiny, b=backend: physics(b, 2, 64), 64)
    found["S6 td3 2 envs, spring"] = (lambda tiny: as_trained(off_policy("td3", 2, "spring"), 1, 64), 64)
    for seeds in (1, 64):
        found[f"S6 PPO cartpole, {seeds} seeds"] = (
            lambda tiny, n=seeds: as_trained(configured(tiny, "agent=ppo env=cartpole"), 2 if tiny else n, 4),
            4,
        )
    return found


def timed(name: str, tiny: bool) -> dict[str, Any]:
    """Compile one job, wait for a line on standard input, and time it in milliseconds per iteration."""
    import jax

    began = time.perf_counter()
    make, count = timings()[name]
    call = make(tiny)
    metrics = jax.block_until_ready(call())
    first = time.perf_counter() - began
    print("ready", flush=True)
    sys.stdin.readline()
    seconds = []
    while len(seconds) < 3 or (len(seconds) < 20 and sum(seconds) < 4):
        began = time.perf_counter()
        metrics = jax.block_until_ready(call())
        seconds.append(time.perf_counter() - began)
    steps = float(metrics["env_steps"].sum())
    each = statistics.median(seconds) / count
    found = {"ms": 1000 * each, "best_ms": 1000 * min(seconds) / count, "calls": len(seconds), "first_s": first}
    memory = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    return found | {"env_steps": steps, "env_steps_per_s": steps / each, "peak_mb": memory / 1e6}


def trained(name: str, out: Path, deadline: float) -> dict[str, Any]:
    """Train one family for three iterations with its command."""
    folder = out / "runs" / name
    arguments = [*FAMILIES[name].split(), "iterations=3", "tensorboard=false", f"run_dir={folder}"]
    command = [sys.executable, "-m", "evorl.train", *arguments]
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline)
        code, said = done.returncode, (done.stdout + done.stderr).strip().splitlines()
    except subprocess.TimeoutExpired:
        code, said = 124, []
    row = {"args": FAMILIES[name], "code": code, "seconds": time.perf_counter() - began, "said": said[-1:]}
    metrics = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []
    kept = ("kind", "env_steps", "episodes", "gradient_steps", "return", "compile_seconds", "diverged")
    names = [*kept, *(name for row in rows for name in row if name.endswith("loss"))]
    row["rows"] = [{name: row[name] for name in names if name in row} for row in rows]
    return row if code == 0 else row | {"said": said[-8:]}


def surroundings() -> dict[str, Any]:
    import jax
    import numpy as np

    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
    }


class Rows:
    """The rows of a folder; each is written to disk before the next is computed."""

    def __init__(self, out: Path) -> None:
        self.file = out / "rows.jsonl"
        text = self.file.read_text().splitlines() if self.file.is_file() else []
        self.done = {row["job"] for row in map(json.loads, text)}

    def add(self, job: str, row: dict[str, Any]) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps({"job": job, **row}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(job, {k: v for k, v in row.items() if k not in ("rows", "args")}, flush=True)


def compare(out: Path, other: Path) -> None:
    """Print, for each training in both folders, whether all counters agree and how far the first losses differ."""

    def trainings(folder: Path) -> dict[str, list[dict[str, Any]]]:
        rows = map(json.loads, (folder / "rows.jsonl").read_text().splitlines())
        return {row["job"]: row["rows"] for row in rows if row.get("rows")}

    def counters(rows: list[dict[str, Any]]) -> list[Any]:
        return [row.get(name) for row in rows for name in ("env_steps", "episodes", "gradient_steps")]

    ours, theirs = trainings(out), trainings(other)
    for job in sorted(ours.keys() & theirs.keys()):
        a, b = ours[job], theirs[job]
        print(job, "counters equal" if counters(a) == counters(b) else f"{counters(a)} {counters(b)}", end="; ")
        losses = [name for name in a[0] if name.endswith("loss")]
        print(*(f"{name} {abs(a[0][name] - b[0][name]) / max(abs(b[0][name]), 1e-12):.1e}" for name in losses))


def run_all(out: Path, stages: list[str], tiny: bool, limit: float, at_once: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    rows, end = Rows(out), time.monotonic() + limit
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XDG_CACHE_HOME", str(out / "cache"))
    small = ["--tiny"] * tiny
    one = [sys.executable, __file__, str(out), *small, "--job"]

    def wanted(jobs: list[str]) -> list[str]:
        return [job for job in jobs if job not in rows.done and (not stages or {job, job.split()[0]} & {*stages})]

    if wanted(["S0"]):
        done = subprocess.run([*one, "S0"], capture_output=True, text=True)
        rows.add("S0", json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"said": done.stderr})
    timing: dict[str, subprocess.Popen] = {}
    ready: list[str] = []

    def compile_one(job: str) -> None:
        log = (out / f"{job}.log").open("w")
        process = subprocess.Popen([*one, job], stdin=-1, stdout=-1, stderr=log, text=True)
        timing[job] = process
        assert process.stdout is not None
        if process.stdout.readline() == "ready\n":
            ready.append(job)
        else:
            rows.add(job, {"error": (out / f"{job}.log").read_text()[-1500:]})

    def train_one(job: str) -> None:
        if (left := end - time.monotonic() - limit / 4) > 20:
            rows.add(job, trained(job.partition(" ")[2], out, left))

    pool = ThreadPoolExecutor(at_once)
    waiting = [pool.submit(compile_one, job) for job in wanted(list(timings()))]
    waiting += [pool.submit(train_one, job) for job in wanted([f"S1 {name}" for name in FAMILIES])]
    while not all(one.done() for one in waiting) and time.monotonic() < end - limit / 4:
        time.sleep(0.2)
    pool.shutdown(wait=False, cancel_futures=True)
    for job in sorted(ready):
        process = timing[job]
        if time.monotonic() < end:
            found = process.communicate("go\n", timeout=60)[0].strip()
            rows.add(job, json.loads(found) if process.returncode == 0 else {"error": "see its log"})
    for process in timing.values():
        process.kill()
    os.killpg(0, signal.SIGTERM)  # end all remaining processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=[], metavar="STAGE")
    parser.add_argument("--against", type=Path, metavar="FOLDER")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=540, help="when to end; a quarter is left for timings")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.against:
        compare(args.out, args.against)
    elif args.job == "S0":
        print(json.dumps(surroundings() | ceilings(args.tiny)))
    elif args.job:
        print(json.dumps(timed(args.job, args.tiny)))
    else:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        run_all(args.out, args.only, args.tiny, args.seconds, args.at_once)


if __name__ == "__main__":
    main()
