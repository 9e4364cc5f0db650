"""Time generations of OpenES by the number of individuals that are evaluated at the same time, on a CPU.

python scripts/benchmarks/block_size.py                            populations on CartPole, and one on swimmer
python scripts/benchmarks/block_size.py --devices 2                with two devices instead of one
python scripts/benchmarks/block_size.py --rounds 9 --only swimmer  some of them

The blocks of a population take turns in one process. "ratio" is the median time of a generation relative to that of the
default, which is the first row. `evorl/workflows/blocks.py` chooses the default.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from peers_timing import surroundings

from evorl import Brax, Evolution, Gymnax, MLPPolicy
from evorl.ec import OpenES
from evorl.parts import resolve_numbers
from evorl.training.devices import compiler_options, fast_compile_options, set_host_devices
from evorl.training.program import Program, make_run_args

CASES: dict[str, tuple[str, int, int, tuple[int, ...]]] = {  # environment, hidden units, population, sizes of a block
    "64": ("CartPole-v1", 64, 4096, (64, 256, 512, 1024, 4096)),
    "256": ("CartPole-v1", 256, 512, (8, 16, 32, 64, 512)),
    "512": ("CartPole-v1", 512, 128, (4, 8, 16, 128)),
    "swimmer": ("swimmer", 256, 512, (32, 64, 128, 512)),
}


def train(workflow: Evolution, devices: int) -> Callable[[int], float]:
    """Return a function that continues a training by generation i and returns its seconds."""
    program, numbers = Program(workflow, [0], 1, False, devices), resolve_numbers(workflow)
    traced = program.trace(numbers)
    held = [traced.init.lower().compile(fast_compile_options())(program.keys, numbers)]
    run = traced.run.compile(compiler_options())

    def one(i: int) -> float:
        began = time.perf_counter()
        state, *_ = run(held[0], program.keys, *make_run_args(i, 1, False))
        held[0] = jax.block_until_ready(state)
        return time.perf_counter() - began

    return one


def compare(case: str, devices: int, rounds: int) -> None:
    """Print a row for each size of a block."""
    name, width, population, sizes = CASES[case]
    env: Any = Gymnax(name) if name.endswith("-v1") else Brax(name, backend="generalized", max_episode_steps=100)
    policy = MLPPolicy(hidden=(width, width), activation="tanh")
    default = Evolution(env, policy, OpenES(population), normalization="none")
    kinds = {"default": default} | {f"{m:,}": replace(default, members_at_once=m) for m in sizes}
    runs = {name: train(workflow, devices) for name, workflow in kinds.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 1):
        for kind, run in runs.items():
            seconds[kind].append(run(i))
    first = statistics.median(seconds["default"][1:])
    for kind, found in seconds.items():
        median = statistics.median(found[1:])
        print(f"| {name} | {width} | {population:,} | {kind} | {median:.2f} | {median / first:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, nargs="*", default=tuple(CASES))
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    set_host_devices(given.devices)
    print(surroundings(given.rounds))
    print("| environment | hidden units | population | members at once | s per generation | ratio |")
    print("|---|---|---|---|---|---|")
    for case in given.only:
        compare(case, given.devices, given.rounds)


if __name__ == "__main__":
    main()
