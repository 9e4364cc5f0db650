"""Compare the seconds of an iteration on one Ray worker and on more, and check that the results are bitwise identical.

python scripts/benchmarks/ray_league.py [--workers 1 2] [--iterations 10] [OPTION ...]
python scripts/benchmarks/ray_league.py --iterations 40 agent=impala env=ant agent.workflow.num_envs=64

The default training is PSRO: PPO responses on Leduc poker, and estimated payoffs. With an on-policy agent, the workers
run rollouts, split into as many parts as the largest number of workers, and this process trains. An OPTION is an option
of the training, such as agent.workflow.oracle.iterations=8. Each process has one thread. The first half of the
iterations, in which all processes compile, is left out; the result is the median of the rest.
"""

import argparse
import os
import statistics
from functools import partial
from typing import Any

os.environ["PJRT_NPROC"] = "1"

import jax
import numpy as np

from evorl.distributed.cluster import connect_to_ray
from evorl.distributed.coordinator import coordinate_psro
from evorl.distributed.ray_executor import RayExecutor
from evorl.distributed.rollout_coordinator import coordinate_rollouts
from evorl.leagues.psro import PSRO
from evorl.training import runs
from evorl.training.configuration import config
from evorl.training.devices import enable_compilation_cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("options", nargs="*")
    given = parser.parse_args()
    league = [] if any(one.startswith("agent=") for one in given.options) else ["agent=psro", "env=leduc"]
    with connect_to_ray():
        enable_compilation_cache()
        workflow, _ = runs.build(config.compose_config([*league, *given.options]))
        of_psro = isinstance(workflow, PSRO)
        trained: Any = coordinate_psro if of_psro else partial(coordinate_rollouts, parts=max(given.workers))
        took, states = {}, []
        for workers in given.workers:
            done = list(trained(workflow, RayExecutor(workers), given.iterations))
            seconds = np.diff([one.seconds for one in done])
            took[workers] = statistics.median(seconds[len(seconds) // 2 :])
            last: Any = done[-1].state
            states.append(jax.device_get((last.pool, last.payoffs) if of_psro else last.agent))
            same = all(map(np.array_equal, jax.tree.leaves(states[0]), jax.tree.leaves(states[-1])))
            print(f"workers {workers}: {took[workers]:.3g} s an iteration, bitwise identical: {same}", flush=True)
    first, *others = given.workers
    for workers in others:
        print(f"{workers} are {took[first] / took[workers]:.2f} times as fast as {first}")


if __name__ == "__main__":
    main()
