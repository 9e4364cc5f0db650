"""CMA-ES with pycma."""

import cma  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
import numpy as np
from es_functions import GENERATIONS, SIGMA, START, TARGET, count_members, limit_evaluations, rosenbrock, sphere
from side import Round, serve


def make(size: int, start: float, seed: int) -> cma.CMAEvolutionStrategy:
    options = {"popsize": count_members(size), "seed": seed + 1, "verbose": -9}
    return cma.CMAEvolutionStrategy(size * [start], SIGMA, options)


def cma_es(size: int) -> Round:
    """Generations on the sphere."""
    search = make(size, 1.0, 0)

    def one(i: int) -> dict[str, float]:
        for _ in range(GENERATIONS[size]):
            members = search.ask()
            search.tell(members, sphere(np.asarray(members)).tolist())
        return {"work": GENERATIONS[size]}

    return one


def cma_es_to_target(size: int) -> Round:
    """One seed of Rosenbrock's function until a value below TARGET."""

    def one(i: int) -> dict[str, float]:
        search, best = make(size, START, i), np.inf
        while best >= TARGET and search.countevals < limit_evaluations(size):
            members = search.ask()
            values = rosenbrock(np.asarray(members))
            search.tell(members, values.tolist())
            best = values.min()
        return {"work": search.countevals, "score": float(best)}

    return one


if __name__ == "__main__":
    serve({"cma_es": cma_es, "cma_es_to_target": cma_es_to_target}, "cma", "numpy")
