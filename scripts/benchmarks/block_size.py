"""Time generations of OpenES by the number of individuals that are evaluated at the same time, on a CPU.

python scripts/benchmarks/block_size.py                            populations on CartPole, and one on swimmer
python scripts/benchmarks/block_size.py --devices 2                with two devices instead of one
python scripts/benchmarks/block_size.py --rounds 9 --only swimmer  some of them

The blocks of a population take turns in one process. "ratio" is the median time of a generation relative to that of the
default, which is the first row. `evorl/workflows/blocks.py` chooses the default.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from peers_timing import surroundings

from evorl import Brax, Evolution, Gymnax, MLPPolicy
from evorl.ec import OpenES
from evorl.training.devices import set_host_devices

sys.path.append(str(Path(__file__).parents[1]))
from gpu_jobs import compile_training

CASES: dict[str, tuple[str, int, int, tuple[int, ...]]] = {  # environment, hidden units, population, sizes of a block
    "64": ("CartPole-v1", 64, 4096, (64, 256, 512, 1024, 4096)),
    "256": ("CartPole-v1", 256, 512, (8, 16, 32, 64, 512)),
    "512": ("CartPole-v1", 512, 128, (4, 8, 16, 128)),
    "swimmer": ("swimmer", 256, 512, (32, 64, 128, 512)),
}


def train(workflow: Evolution, devices: int) -> Callable[[], float]:
    """Return a function that continues a training by a generation and returns its seconds."""
    call = compile_training(workflow, devices=devices)()

    def one() -> float:
        began = time.perf_counter()
        jax.block_until_ready(call())
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
    for _ in range(rounds + 1):
        for kind, run in runs.items():
            seconds[kind].append(run())
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
