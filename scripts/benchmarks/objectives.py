"""Compare multi-objective search with pymoo: time of Pareto ranking; hypervolume and time of NSGA-II and RVEA.

python scripts/benchmarks/objectives.py                    everything, some two minutes, most of them pymoo's
python scripts/benchmarks/objectives.py --only fronts      one of: ranks, fronts, directions
python scripts/benchmarks/objectives.py --seeds 2          of the fronts, 8 by default

ranks       the Pareto fronts of 1,024 normally distributed points, of 2 to 5 objectives, and of a chain, in which each
            point is a front of its own; pymoo's code is compiled C
fronts      ZDT1 to 3, 30 variables, population 200, 250 generations, SBX eta 15 at 0.9, polynomial mutation eta 20,
            hypervolume at (1.1, 1.1)
directions  DTLZ2, 3 objectives, 12 variables, 105 members, 250 generations, hypervolume at (1.1, 1.1, 1.1)

The last two run from seeds 1, 2, ..., in turn, seed by seed, in one process; evorl's program is compiled once, before.
"""

# pyright: reportMissingImports=false
import argparse
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peers_timing import surroundings, timed

from evorl.ec import NSGA2, RVEA, objectives
from evorl.parts import resolve_numbers
from evorl.problems import DTLZ, ZDT
from evorl.workflows import Search

GENERATIONS = 250
POINTS = 1024
TRUE = {"ZDT1": 0.8767, "ZDT2": 0.5433, "ZDT3": 1.3318, "DTLZ2": 0.8074}  # hypervolumes of the true fronts


def ranks() -> None:
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    print(f"\nfronts of {POINTS} points, milliseconds, median of 100\n")
    print("| points | fronts | evorl | pymoo |\n|---|---|---|---|")
    cases = {f"normal, {m} objectives": jax.random.normal(jax.random.key(m), (POINTS, m)) for m in (2, 3, 4, 5)}
    cases["a chain, 2 objectives"] = jnp.stack([jnp.arange(float(POINTS))] * 2, 1)
    rank = jax.jit(objectives.compute_pareto_ranks)
    for name, points in cases.items():
        theirs = -np.asarray(points, float)
        fronts, expected = NonDominatedSorting().do(theirs, return_rank=True)
        assert (np.asarray(rank(points)) == expected).all()
        ours_s, _ = timed(rank, points, repeats=100)
        theirs_s, _ = timed(NonDominatedSorting().do, theirs, repeats=100)
        print(f"| {name} | {len(fronts)} | {1e3 * ours_s:.2f} | {1e3 * theirs_s:.2f} |")


def searched(workflow: Search) -> Callable[[jax.Array], Any]:
    """Return a function from a key to the fitness of the front; individuals outside it get the worst fitness."""

    def run(key: jax.Array) -> jax.Array:
        key_init, key_steps = jax.random.split(key)
        state = workflow.init(key_init, resolve_numbers(workflow))
        state, _ = jax.lax.scan(workflow.step, state, jax.random.split(key_steps, GENERATIONS))
        found = workflow.results(state)
        return jnp.where(found.valid_mask[:, None], found.fitness, objectives.WORST_FITNESS)

    return run


def beside(title: str, seeds: int, cases: dict[str, tuple[Search, Callable[[int], Any]]]) -> None:
    """Print the median hypervolumes and seconds of evorl and of pymoo.

    The peer's function returns the front of a seed, with objectives to minimize.
    """
    from pymoo.indicators.hv import HV

    print(f"\n{title}\n\n| problem | true front | evorl | pymoo | ratio | seed by seed, evorl | pymoo "
          "| seconds, evorl | pymoo | times | compiling |\n|---|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name, (workflow, peer) in cases.items():
        begun = time.perf_counter()
        run = jax.jit(searched(workflow)).lower(jax.random.key(0)).compile()
        compiling = time.perf_counter() - begun
        hv: Any = HV(ref_point=np.full(workflow.num_objectives, 1.1))
        volumes, took = ([], []), ([], [])
        for seed in range(1, seeds + 1):
            for i in range(2):
                begun = time.perf_counter()
                front = peer(seed) if i else -np.asarray(run(jax.random.key(seed)), float)
                took[i].append(time.perf_counter() - begun)
                volumes[i].append(float(hv(front)))
        ours, theirs = (float(np.median(values)) for values in volumes)
        fast, slow = (float(np.median(values)) for values in took)
        each = (", ".join(f"{value:.4f}" for value in values) for values in volumes)
        print(
            f"| {name} | {TRUE[name]:.4f} | {ours:.4f} | {theirs:.4f} | {ours / theirs:.4f} | {' | '.join(each)} "
            f"| {fast:.3f} | {slow:.2f} | {slow / fast:.1f} | {compiling:.1f} |"
        )


def fronts(seeds: int) -> None:
    from pymoo.algorithms.moo.nsga2 import NSGA2 as Peer  # noqa: N811
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.optimize import minimize
    from pymoo.problems import get_problem

    def peer(name: str) -> Callable[[int], Any]:
        def front(seed: int) -> Any:
            algorithm = Peer(pop_size=200, crossover=SBX(eta=15, prob=0.9), mutation=PM(eta=20))
            return minimize(get_problem(name), algorithm, ("n_gen", GENERATIONS), seed=seed).F

        return front

    cases = {f"ZDT{number}": (Search(ZDT(number), NSGA2(200)), peer(f"zdt{number}")) for number in (1, 2, 3)}
    beside(f"NSGA-II, population 200, {GENERATIONS} generations, medians of {seeds} seeds", seeds, cases)


def directions(seeds: int) -> None:
    from pymoo.algorithms.moo.rvea import RVEA as Peer  # noqa: N811
    from pymoo.optimize import minimize
    from pymoo.problems import get_problem
    from pymoo.util.ref_dirs import get_reference_directions

    def peer(seed: int) -> Any:
        algorithm = Peer(get_reference_directions("das-dennis", 3, n_partitions=13))
        return minimize(get_problem("dtlz2", n_var=12, n_obj=3), algorithm, ("n_gen", GENERATIONS), seed=seed).F

    cases = {"DTLZ2": (Search(DTLZ(2, 3), RVEA(105, GENERATIONS)), peer)}
    beside(f"RVEA, 105 members, {GENERATIONS} generations, medians of {seeds} seeds", seeds, cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["ranks", "fronts", "directions"])
    parser.add_argument("--seeds", type=int, default=8)
    given = parser.parse_args()
    print(surroundings(given.seeds) | {"pymoo": metadata.version("pymoo")})
    if given.only in (None, "ranks"):
        ranks()
    if given.only in (None, "fronts"):
        fronts(given.seeds)
    if given.only in (None, "directions"):
        directions(given.seeds)


if __name__ == "__main__":
    main()
