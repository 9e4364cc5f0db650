"""Measure how the time of a population's step grows with its size, relative to one member.

python scripts/benchmarks/population_speed.py E5 --sizes 1 8                             a generation of PBT on PPO
python scripts/benchmarks/population_speed.py E4 --sizes 1 8                             a generation of CEM-RL each
python scripts/benchmarks/population_speed.py E5 --sizes 1 8 32 128 512 --out curve.png  for a GPU

The workloads are those of benchmark.py, on swimmer. The sizes take turns; each figure is the median of the rounds.
"""

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from peers_timing import clock, medians, surroundings
from workloads import KEY, WORKLOADS, jitted, pbt

from evorl import Truncation, Vmapped, tree
from evorl.population import NoSelection


def population(workload: str, size: int) -> tuple[Any, Any]:
    """Return the workflow with this number of members, and its numbers."""
    if workload == "E5":
        return pbt(size, selection=Truncation(0.25) if size >= 4 else NoSelection())[:2]
    inner, numbers, *_ = WORKLOADS["E4"]()
    return Vmapped(inner, size), tree.broadcast(numbers, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=("E4", "E5"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", help="a picture of the curve")
    arguments = parser.parse_args()
    steps, states = {}, {}
    for size in arguments.sizes:
        workflow, numbers = population(arguments.workload, size)
        steps[size] = jitted(workflow.step, donate_argnums=0)
        states[size] = jax.jit(workflow.init)(KEY, numbers)
        for _ in range(2):  # the random steps of CEM-RL, then a first generation
            states[size], _ = steps[size](states[size], KEY)
    times = {size: [] for size in arguments.sizes}
    for _ in range(arguments.repeats):
        for size in arguments.sizes:
            kept = jax.block_until_ready(jax.tree.map(jnp.copy, states[size]))
            times[size].append(clock(partial(steps[size], kept), KEY))
    found = {size: medians(one) for size, one in times.items()}
    print(surroundings(arguments.repeats))
    print("\n| members | wall s | CPU s | over the first, wall | CPU |\n|---|---|---|---|---|")
    first = found[arguments.sizes[0]]
    for size, (wall, cpu) in found.items():
        print(f"| {size} | {wall:.3f} | {cpu:.3f} | {wall / first[0]:.2f} | {cpu / first[1]:.2f} |")
    if arguments.out:
        draw({size: wall for size, (wall, _) in found.items()}, arguments.out)


def draw(walls: dict[int, float], out: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    sizes = list(walls)
    axes.loglog(sizes, list(walls.values()), "o-", label="measured")
    axes.loglog(sizes, [walls[sizes[0]] * size / sizes[0] for size in sizes], "--", label="in proportion")
    axes.set(xlabel="members", ylabel="seconds a generation")
    axes.legend()
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main()
