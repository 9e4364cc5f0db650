"""Compare the time of quality-diversity archives with QDax 0.5.0 and pyribs 0.12.0, in an environment with both.

pip install "qdax==0.5.0" "ribs==0.12.0"
python scripts/benchmarks/peers_archives.py [--repeats 15]

Timed are three adds and a search, in turn:
  - 1,024 genomes of 100 numbers to 10,000 cells, on a grid and on centres;
  - 128 genomes of 20,000 numbers to 1,024 cells, donated;
  - an iteration of CMA-ME, 15 searches of 36 on the linear projection of 100 numbers.
Each add has new random fitness, which rises, so that genomes enter. Results are medians of wall and CPU milliseconds.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peers_timing import clock, medians, surroundings

from evorl.ec import CMAES, MapElites
from evorl.ec.cells import CVTArchive, GridArchive
from evorl.ec.cma_me import ImprovementEmitter
from evorl.problems import LinearProjection
from evorl.types import QDEvaluation
from evorl.workflows import Search

CELLS, EDGE = 10_000, 50 * 5.12
Step = Callable[[int], Any]  # runs the i-th round


def batch(i: Any, n: int) -> tuple[jax.Array, jax.Array]:
    """Return random fitness [n] and descriptors [n, 2] of a round."""
    key = jax.random.fold_in(jax.random.key(0), i)
    return jax.random.normal(key, (n,)) + 0.1 * i, jax.random.uniform(key, (n, 2))


def carried(step: Any, state: Any, *args: Any) -> Step:
    """Return a function that runs rounds of a jitted step with a donated state."""
    step, held = jax.jit(step, donate_argnums=0), [state]

    def once(i: int) -> Any:
        held[0] = step(held[0], jnp.float32(i), *args)
        return held[0]

    return once


def evorl_add(archive: Any, n: int, size: int) -> Step:
    genomes = jax.random.normal(jax.random.key(1), (n, size))

    def add(elites: Any, i: jax.Array, genomes: Any) -> Any:
        fitness, descriptor = batch(i, n)
        return archive.add(elites, genomes, QDEvaluation(fitness, descriptor), jnp.float32(1))[0]

    return carried(add, archive.empty(genomes), genomes)


def qdax_add(centres: Any, n: int, size: int) -> Step:
    from qdax.core.containers.mapelites_repertoire import MapElitesRepertoire  # pyright: ignore[reportMissingImports]

    genomes = jax.random.normal(jax.random.key(1), (n, size))
    fitness, descriptor = batch(0, n)
    first = MapElitesRepertoire.init(genomes, fitness[:, None], descriptor, jnp.asarray(centres), {})

    def add(repertoire: Any, i: jax.Array, genomes: Any) -> Any:
        fitness, descriptor = batch(i, n)
        return repertoire.add(genomes, descriptor, fitness[:, None], {})

    return carried(add, first, genomes)


def ribs_add(archive: Any, n: int, size: int) -> Step:
    genomes, score = np.random.default_rng(0).normal(size=(n, size)), jax.jit(lambda i: batch(i, n))

    def once(i: int) -> Any:
        fitness, descriptor = (np.asarray(x, float) for x in score(i))
        return archive.add(genomes, fitness, descriptor)["status"]

    return once


def evorl_cma_me() -> Step:
    emitter = ImprovementEmitter(15, CMAES(36, active=False, initial_std=0.5))
    evolver = MapElites(GridArchive((-EDGE, -EDGE), (EDGE, EDGE), (100, 100)), emitter)
    workflow = Search(LinearProjection(100), evolver)
    state = workflow.init(jax.random.key(0))
    return carried(
        lambda state, i: workflow.step(state, jax.random.fold_in(jax.random.key(0), i.astype(int)))[0], state
    )


def ribs_cma_me() -> Step:
    from ribs import archives, emitters, schedulers  # pyright: ignore[reportMissingImports]  # no dependency of evorl

    problem = LinearProjection(100)
    evaluate = jax.jit(jax.vmap(lambda x: problem.evaluate(jax.random.key(0), x)))
    archive = archives.GridArchive(solution_dim=100, dims=(100, 100), ranges=[(-EDGE, EDGE)] * 2)
    one = lambda i: emitters.EvolutionStrategyEmitter(archive, x0=np.zeros(100), sigma0=0.5, batch_size=36, seed=i)  # noqa: E731
    scheduler = schedulers.Scheduler(archive, [one(i) for i in range(15)])

    def once(i: int) -> Any:
        found = evaluate(jnp.asarray(scheduler.ask(), jnp.float32))
        scheduler.tell(np.asarray(found.fitness, float), np.asarray(found.descriptor, float))
        return ()

    return once


def main() -> None:
    from qdax.core.containers.mapelites_repertoire import (  # pyright: ignore[reportMissingImports]  # no dependency
        compute_euclidean_centroids,
    )
    from ribs import archives  # pyright: ignore[reportMissingImports]  # no dependency of evorl

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    grid, cvt = GridArchive(shape=(100, 100)), CVTArchive(cells=CELLS, samples=12_000)
    small, boxes = GridArchive(), [(0.0, 1.0)] * 2
    squares, few = (compute_euclidean_centroids(shape, 0.0, 1.0) for shape in ((100, 100), (32, 32)))
    cases: dict[str, dict[str, Step]] = {
        "add, grid": {
            "evorl": evorl_add(grid, 1024, 100),
            "QDax": qdax_add(squares, 1024, 100),
            "pyribs": ribs_add(archives.GridArchive(solution_dim=100, dims=(100, 100), ranges=boxes), 1024, 100),
        },
        "add, centres": {"evorl": evorl_add(cvt, 1024, 100), "QDax": qdax_add(cvt.centroids, 1024, 100)},
        "add, 20,000 weights": {"evorl": evorl_add(small, 128, 20_000), "QDax": qdax_add(few, 128, 20_000)},
        "CMA-ME": {"evorl": evorl_cma_me(), "pyribs": ribs_cma_me()},
    }
    print(
        surroundings(repeats),
        "\n| | | wall ms | CPU ms | over evorl's, wall | CPU |\n|---|---|---|---|---|---|",
        sep="\n",
    )
    for case, steps in cases.items():
        for step in steps.values():
            jax.block_until_ready(step(0))
            jax.block_until_ready(step(1))
        times: dict[str, list[Any]] = {name: [] for name in steps}
        for i in range(repeats):
            for name, step in steps.items():
                times[name].append(clock(step, i + 2))
        wall, cpu = medians(times["evorl"])
        for name, each in times.items():
            own = medians(each)
            ratios = f"{own[0] / wall:.1f} | {own[1] / cpu:.1f}"
            print(f"| {case} | {name} | {1e3 * own[0]:.2f} | {1e3 * own[1]:.2f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
