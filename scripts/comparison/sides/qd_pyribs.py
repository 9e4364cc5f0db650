"""Quality diversity with pyribs."""

import numpy as np
from ribs import archives, emitters, schedulers  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
from side import Round, serve

BATCH, SIZE, OPTIMUM = 1024, 100, 2.048
LIMIT, EDGE = 5.12, 5.12 * SIZE / 2
SHAPES = {1_000: (40, 25), 10_000: (100, 100), 100_000: (400, 250)}
Floats = np.ndarray


def linear_projection(x: Floats) -> tuple[Floats, Floats]:
    """Return the fitness of the sphere function [n], from 0 to 100, and the sums of both halves of x, [n, 2]."""
    fitness = 100 * (1 - ((x - OPTIMUM) ** 2).sum(1) / (SIZE * (LIMIT + OPTIMUM) ** 2))
    within = np.where(np.abs(x) <= LIMIT, x, LIMIT / np.where(x == 0, 1, x))
    return fitness, within.reshape(len(x), 2, -1).sum(2)


def cma_me(iterations: int) -> Round:
    def one(i: int) -> dict[str, float]:
        archive = archives.GridArchive(solution_dim=SIZE, dims=(100, 100), ranges=[(-EDGE, EDGE)] * 2, seed=i)
        searches = [
            emitters.EvolutionStrategyEmitter(
                archive, x0=np.zeros(SIZE), sigma0=0.5, ranker="2imp", batch_size=36, seed=100 * i + j
            )
            for j in range(15)
        ]
        scheduler = schedulers.Scheduler(archive, searches)
        for _ in range(iterations):
            scheduler.tell(*linear_projection(scheduler.ask()))
        return {"work": iterations, "score": float(archive.stats.qd_score)}

    return one


def archive(cells: int) -> Round:
    """Adds of 1,024 solutions, whose fitness rises, so that some enter."""
    count, rng, done = 500, np.random.default_rng(0), [0]
    genomes = rng.normal(size=(BATCH, SIZE))
    grid = archives.GridArchive(solution_dim=SIZE, dims=SHAPES[cells], ranges=[(0.0, 1.0)] * 2)

    def one(i: int) -> dict[str, float]:
        del i
        for _ in range(count):
            grid.add(genomes, rng.normal(size=BATCH) + 0.1 * done[0], rng.uniform(size=(BATCH, 2)))
            done[0] += 1
        return {"work": count}

    return one


if __name__ == "__main__":
    serve({"cma_me": cma_me, "archive": archive}, "ribs", "numpy")
