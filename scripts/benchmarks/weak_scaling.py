"""Measure weak scaling: the time in which n devices do n times the work of one device.

python scripts/benchmarks/weak_scaling.py                on a CPU with 1, 2, 4, ... host devices, up to its cores
python scripts/benchmarks/weak_scaling.py --most 8       up to so many; on GPUs those that are there

Each device has 4 seeds of PPO on CartPole, 64 members of OpenES on hopper (spring), or 4 members of PBT on PPO,
swimmer. Each count of devices has fresh processes, in turn, in each round. Results are wall seconds, the median of five
repeats and of the rounds. The efficiency is the time of one device divided by the time of n. Times are meaningless on a
machine that does other work at the same time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("PPO", "OpenES", "PBT")
REPEATS = 5


def workload(name: str, devices: int) -> tuple[Any, Any, int, int]:
    """Return the workflow, numbers, iterations and seeds for this number of devices."""
    from workloads import pbt

    import evorl
    from evorl.parts import resolve_numbers

    if name == "PBT":
        return *pbt(4 * devices)[:2], 1, 1
    if name == "PPO":
        env: Any = evorl.Gymnax("CartPole-v1")
        agent = evorl.PPO(hidden=(64, 64))
        workflow = evorl.OnPolicy(env, agent)
        return workflow, resolve_numbers(workflow), 4, 4 * devices
    env = evorl.Brax("hopper", backend="spring")
    policy = evorl.MLPPolicy(hidden=(64, 64))
    search = evorl.Evolution(env, policy, evorl.OpenES(64 * devices))
    return search, resolve_numbers(search), 4, 1


def measured(name: str, devices: int) -> float:
    """Return the median wall seconds of a chunk of iterations on this number of devices."""
    from evorl.training.devices import compiler_options, set_host_devices

    set_host_devices(devices, required=False)
    import jax

    from evorl.training.devices import fast_compile_options
    from evorl.training.program import Program, make_run_args

    workflow, numbers, iterations, seeds = workload(name, devices)
    program = Program(workflow, range(seeds), iterations, jax.default_backend() != "cpu", devices)
    times = []
    with jax.set_mesh(program.mesh):
        traced = program.trace(numbers)
        state = traced.init.lower().compile(fast_compile_options())(program.keys, numbers)
        run = traced.run.compile(compiler_options())
        for i in range(REPEATS + 2):  # the first two: the random steps, then the first training steps
            started = time.perf_counter()
            state, _, _ = jax.block_until_ready(run(state, program.keys, *make_run_args(i, iterations, False)))
            times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def main() -> None:
    from evorl.machine import count_cores

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=count_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one[0], int(given.one[1]))))
        return
    counts = [2**i for i in range(given.most.bit_length()) if 2**i <= given.most]
    columns = " | ".join(f"{n} devices, s" for n in counts)
    print(f"| of each device | {columns} | efficiency |\n|{'---|' * (len(counts) + 2)}")
    for name in NAMES:
        times: dict[int, list[float]] = {n: [] for n in counts}
        for _ in range(given.rounds):
            for n in counts:
                command = [sys.executable, str(Path(__file__)), "--one", name, str(n)]
                found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                times[n].append(json.loads(found.stdout.splitlines()[-1]))
        medians = [statistics.median(times[n]) for n in counts]
        shares = ", ".join(f"{medians[0] / one:.2f}" for one in medians[1:])
        print(f"| {name} | {' | '.join(f'{one:.3f}' for one in medians)} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
