"""Compare the speed of this checkout with an earlier commit, in alternation, each measurement in a fresh process.

python scripts/benchmarks/before_after.py --before COMMIT --rounds 5 E1 E5-4 E7 E8 E10   workloads of benchmark.py
python scripts/benchmarks/before_after.py --before COMMIT spread      workloads that use several devices by default
python scripts/benchmarks/before_after.py --before COMMIT             all

Each process measures:
  - the time to trace and compile what a training compiles (Program.init and Program.run);
  - the time of the first step, compilation included;
  - medians of five chunks of steps and of five evaluations;
  - the peak memory;
  - what does not depend on the machine's load: instructions of the compiled program, and its temporary memory.
E-workloads are in CPU seconds on one device; those of `spread` in wall seconds, on the devices that a training takes.
A ratio is after / before: the geometric mean over the rounds, with its 95 % t interval from 3 rounds on. Run it on an
otherwise idle machine.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from evorl.stats import mean_interval

ROOT = Path(__file__).parents[2]
REPEATS = 5


def spread() -> dict[str, Any]:
    """Return the workloads that several devices share, by name: workflow, numbers, iterations and seeds."""
    from workloads import pbt

    from evorl import PPO, Brax, Evolution, Gymnax, MLPPolicy, OnPolicy, OpenES
    from evorl.parts import resolve_numbers

    def ppo() -> tuple[Any, Any, int, int]:
        env = Gymnax("CartPole-v1")
        agent = PPO(hidden=(64, 64))
        workflow = OnPolicy(env, agent)
        return workflow, resolve_numbers(workflow), 4, 8

    def openes() -> tuple[Any, Any, int, int]:
        env = Brax("hopper", backend="spring")
        policy = MLPPolicy(hidden=(64, 64))
        workflow = Evolution(env, policy, OpenES(128))
        return workflow, resolve_numbers(workflow), 4, 1

    return {"PPO-8-seeds": ppo, "OpenES-128": openes, "PBT-8": lambda: (*pbt(8)[:3], 1)}


NAMES = ("PPO-8-seeds", "OpenES-128", "PBT-8")


def measured(name: str) -> dict[str, float]:
    """Return the times (seconds) and the peak memory (MB) of a workload under this process's own evorl."""
    options: dict[str, Any] = {}
    if name in NAMES:
        import evorl.training.devices as devices_of
        from evorl import machine

        if hasattr(devices_of, "set_host_devices"):
            options = {"devices": machine.count_cores()}
            devices_of.set_host_devices()
    import before_after  # from the checkout that is measured, like the workloads
    import jax
    from workloads import WORKLOADS

    from evorl.training.devices import compiler_options, fast_compile_options
    from evorl.training.program import Program, make_run_args

    given = before_after.spread()[name]() if name in NAMES else (*WORKLOADS[name]()[:3], 1)
    workflow, numbers, iterations, seeds = given
    program = Program(workflow, range(seeds), iterations, False, **options)
    started = time.process_time(), time.perf_counter()
    if options:
        jax.set_mesh(program.mesh)
        once = jax.jit(program.init)
        places = program.get_shardings(jax.eval_shape(once, program.keys, numbers))
        init = jax.jit(lambda *given: once(*given), out_shardings=places)
        run = jax.jit(program.run, donate_argnums=0, out_shardings=(places, None, None))
    else:
        init, run = jax.jit(program.init), jax.jit(program.run, donate_argnums=0)
    keys = program.keys
    state = init.lower(keys, numbers).compile(fast_compile_options())(keys, numbers)
    run = run.lower(state, keys, *make_run_args(0, 0, False)).compile(compiler_options())
    found = {"compile cpu": time.process_time() - started[0], "compile wall": time.perf_counter() - started[1]}
    found |= {"instructions": str(run.as_text()).count(" = "), "temporary memory": get_temporary_bytes(run) / 2**20}
    state, _, _ = jax.block_until_ready(run(state, keys, *make_run_args(0, 1, False)))
    found |= {"first step cpu": time.process_time() - started[0], "first step wall": time.perf_counter() - started[1]}
    state, _, _ = run(state, keys, *make_run_args(1, iterations, False))
    for what, todo in (("steps", make_run_args(2, iterations, False)), ("evaluation", make_run_args(2, 1, True))):
        times = []
        for _ in range(REPEATS + 1):
            cpu, wall = time.process_time(), time.perf_counter()
            state, _, _ = jax.block_until_ready(run(state, keys, *todo))
            times.append((time.process_time() - cpu, time.perf_counter() - wall))
        cpu, wall = (statistics.median(column) for column in zip(*times[1:], strict=True))
        found |= {f"{what} cpu": cpu, f"{what} wall": wall}
    return found | {"peak memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


@contextmanager
def open_commit(commit: str) -> Iterator[Path]:
    """Give a temporary folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "x"], cwd=folder, input=archive.stdout, check=True)
        yield Path(folder)


def get_temporary_bytes(compiled: Any) -> int:
    """Return the bytes that a compiled program needs in addition to its arguments and results."""
    return compiled.memory_analysis().temp_size_in_bytes


def in_a_process(root: Path, name: str) -> dict[str, float]:
    """Return the result of `measured` with the evorl and the workloads of another checkout."""
    paths = os.pathsep.join(str(root / part) for part in ("scripts/benchmarks", "scripts", "."))
    environment = os.environ | {"PYTHONPATH": paths, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, "-P", str(Path(__file__).absolute()), "--one", name]
    found = subprocess.run(command, env=environment, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--before", help="a commit")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one)))
        return
    from workloads import WORKLOADS

    columns = "compile", "first step", "steps", "evaluation", "peak MB", "instructions", "temporary MB"
    print(f"| workload | time | {' | '.join(columns)} |\n" + "|---" * (2 + len(columns)) + "|")
    given_names = given.workloads or [*WORKLOADS, "spread"]
    with open_commit(given.before) as before:
        for name in [each for one in given_names for each in (NAMES if one == "spread" else [one])]:
            rounds = []
            for i in range(given.rounds):
                order = (before, ROOT)[:: 1 if i % 2 == 0 else -1]
                found = {root: in_a_process(root, name) for root in order}
                rounds.append((found[before], found[ROOT]))
            print(compared(name, rounds), flush=True)


def compared(name: str, rounds: list[tuple[dict[str, float], dict[str, float]]]) -> str:
    """Return a row of the table: medians before and after, and the ratio after / before with its interval."""
    kind, cells = "wall" if name in NAMES else "cpu", []
    times = (f"{what} {kind}" for what in ("compile", "first step", "steps", "evaluation"))
    measures = (*times, "peak memory", "instructions", "temporary memory")
    for measure in measures:
        before, after = np.array([[side[measure] for side in sides] for sides in rounds]).T
        ratio = np.log(after / before)
        between = ""
        if len(rounds) >= 3:
            low, high = np.exp(mean_interval(ratio))
            between = f" [{low:.3f}, {high:.3f}]"
        medians = f"{np.median(before):.3g} → {np.median(after):.3g}"
        cells.append(f"{medians}: {np.exp(ratio.mean()):.3f}{between}")
    return f"| {name} | {kind} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
