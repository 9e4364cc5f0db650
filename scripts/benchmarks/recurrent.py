"""Compare the time of recurrent cores along a sequence, gradient included: S5 step by step, S5 in a tree, GRU, LSTM.

taskset -c 0 env PJRT_NPROC=1 python scripts/benchmarks/recurrent.py [--repeats 7] [--lengths 64 256 1024]

The input is a batch of 32 sequences of 256 numbers, with episode ends in an eighth of the steps. Printed are CPU
milliseconds per step of the batch, medians in turn, and CPU seconds of compiling.
"""

import argparse
from typing import Any

import jax
from peers_timing import Program, in_turn, surroundings

from evorl import tree
from evorl.networks.recurrent import GRU, LSTM
from evorl.networks.s5 import S5

BATCH, WIDTH = 32, 256
CORES = {
    "s5, step by step": S5(associative=False),
    "s5, in a tree": S5(associative=True),
    "gru": GRU(WIDTH),
    "lstm": LSTM(WIDTH),
}


def learning(core: Any, length: int) -> Program:
    """Return a program that computes the gradient of the mean square of the core's outputs."""
    key_x, key_ended, key_core = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(key_x, (length, BATCH, WIDTH))
    ended = jax.random.bernoulli(key_ended, 1 / 8, (length, BATCH))
    memory = tree.broadcast(core.initial_memory(), BATCH)
    params = core.init(key_core, memory, x, ended, method="sequence")

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return (core.apply(params, memory, x, ended, method="sequence")[1] ** 2).mean()

    return Program(lambda params, x: jax.grad(loss)(params, x), (params, x), length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 256, 1024])
    options = parser.parse_args()
    print(surroundings(options.repeats))
    print("| steps | core | CPU ms a step | CPU s to compile |\n|---|---|---|---|")
    for length in options.lengths:
        programs = {name: learning(core, length) for name, core in CORES.items()}
        for name, row in in_turn(programs, "us", options.repeats).items():
            print(f"| {length} | {name} | {1e3 * row['cpu_s'] / length:.2f} | {row['compile_cpu_s']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
