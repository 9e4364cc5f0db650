"""Time generations of OpenES on CartPole by the number of individuals that are evaluated at the same time, on a CPU.

python scripts/benchmarks/block_size.py                            populations of three network sizes
python scripts/benchmarks/block_size.py --rounds 9 --hidden 64     one size

The blocks of a population take turns in one process, on one device. "ratio" is the time of a generation relative to
that of the default, which is the first row. `evorl/workflows/blocks.py` chooses the default.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from peers_timing import Program, in_turn, surroundings

from evorl import Evolution, Gymnax, MLPPolicy
from evorl.ec import OpenES

CASES: dict[int, tuple[int, tuple[int, ...]]] = {  # population and sizes of a block, by hidden units
    64: (4096, (64, 256, 512, 1024, 4096)),
    256: (512, (8, 16, 32, 64, 512)),
    512: (128, (4, 8, 16, 128)),
}
GENERATIONS = 3


def generations(workflow: Evolution) -> Program:
    """Return a program of some generations from scratch."""

    def run(key: Any) -> Any:
        return jax.lax.scan(workflow.step, workflow.init(key), jax.random.split(key, GENERATIONS))[1]["return"]

    return Program(run, (jax.random.key(0),), GENERATIONS)


def compare(width: int, population: int, sizes: Sequence[int], rounds: int) -> None:
    """Print a row for each size of a block."""
    policy = MLPPolicy(hidden=(width, width), activation="tanh")
    default = Evolution(Gymnax("CartPole-v1"), policy, OpenES(population), normalization="none")
    kinds = {"default": default} | {f"{m:,}": replace(default, members_at_once=m) for m in sizes}
    found = in_turn({name: generations(workflow) for name, workflow in kinds.items()}, "rate", rounds)
    for name, row in found.items():
        print(f"| {width} | {population:,} | {name} | {1 / row['rate']:.2f} | {row.get('ratio', 1):.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, choices=tuple(CASES), nargs="*", default=tuple(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(surroundings(given.rounds))
    print("| hidden units | population | members at once | s per generation | ratio |\n|---|---|---|---|---|")
    for width in given.hidden:
        compare(width, *CASES[width], given.rounds)


if __name__ == "__main__":
    main()
