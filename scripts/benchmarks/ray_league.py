"""Seconds of an iteration of PSRO on one worker of Ray and on more, compiling apart; and whether they come to the same.

python scripts/benchmarks/ray_league.py [--workers 1 2] [--iterations 10] [OPTION ...]

PPO answers on Leduc poker, payoffs are played; an OPTION is one of the training's, such as
agent.hyperparams.oracle.iterations=8. Each worker has a thread of its own. The first half of the iterations, in which
all compile, is left out; of the others the median counts.
"""

import argparse
import os
import statistics

os.environ["PJRT_NPROC"] = "1"

import jax
import numpy as np

from evorl.distributed.actors import Ray
from evorl.distributed.cluster import connected
from evorl.distributed.coordinator import coordinate
from evorl.training import runs
from evorl.training.configuration import config
from evorl.training.devices import enable_compilation_cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("options", nargs="*")
    given = parser.parse_args()
    with connected():
        enable_compilation_cache()
        workflow, hyperparams, _ = runs.build(config.load(["agent=psro", "env=leduc", *given.options]))
        took, states = {}, []
        for workers in given.workers:
            done = list(coordinate(workflow, Ray(workers), given.iterations, hyperparams=hyperparams))
            seconds = np.diff([one.seconds for one in done])
            took[workers] = statistics.median(seconds[len(seconds) // 2 :])
            states.append(jax.device_get((done[-1].state.pool, done[-1].state.payoffs)))
            same = all(map(np.array_equal, jax.tree.leaves(states[0]), jax.tree.leaves(states[-1])))
            print(f"workers {workers}: {took[workers]:.2f} s an iteration, the same bits: {same}", flush=True)
    first, *others = given.workers
    for workers in others:
        print(f"{workers} are {took[first] / took[workers]:.2f} times as fast as {first}")


if __name__ == "__main__":
    main()
