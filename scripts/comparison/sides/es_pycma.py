"""CMA-ES with pycma."""

# pyright: reportMissingImports=false
from typing import Any

import cma
import numpy as np
from cma import bbobbenchmarks
from es_functions import (
    BBOB_RANGE,
    BBOB_SIGMA,
    BBOB_TARGET,
    GENERATIONS,
    SIGMA,
    START,
    TARGET,
    count_members,
    limit_evaluations,
    rosenbrock,
    sphere,
)
from side import Round, serve


def make(size: int, start: Any, seed: int, sigma: float = SIGMA) -> cma.CMAEvolutionStrategy:
    options = {"popsize": count_members(size), "seed": seed + 1, "verbose": -9}
    return cma.CMAEvolutionStrategy(np.broadcast_to(start, size), sigma, options)


def cma_es(size: int) -> Round:
    """Generations on the sphere."""
    search = make(size, 1.0, 0)

    def one(i: int) -> dict[str, float]:
        for _ in range(GENERATIONS[size]):
            members = search.ask()
            search.tell(members, sphere(np.asarray(members)).tolist())
        return {"work": GENERATIONS[size]}

    return one


def run(search: cma.CMAEvolutionStrategy, evaluate: Any, target: float) -> tuple[int, float]:
    """Search until a value is below a target; return the number of evaluations and the last value."""
    best = np.inf
    while best >= target and search.countevals < limit_evaluations(search.N):
        members = search.ask()
        values = evaluate(np.asarray(members))
        search.tell(members, values.tolist())
        best = values.min()
    return search.countevals, float(best)


def cma_es_to_target(size: int) -> Round:
    """One seed of Rosenbrock's function until a value below TARGET."""

    def one(i: int) -> dict[str, float]:
        taken, best = run(make(size, START, i), rosenbrock, TARGET)
        return {"work": taken, "score": best}

    return one


def bbob(size: int) -> Round:
    """One seed of all functions of BBOB; the score is the number of functions with a value below BBOB_TARGET."""
    functions = [getattr(bbobbenchmarks, f"F{number}")(1) for number in range(1, 25)]

    def one(i: int) -> dict[str, float]:
        start = np.random.default_rng(i).uniform(-BBOB_RANGE, BBOB_RANGE, size)
        found = [
            run(make(size, start, i, BBOB_SIGMA), lambda x, f=f: f(x) - f.getfopt(), BBOB_TARGET) for f in functions
        ]
        return {"work": sum(taken for taken, _ in found), "score": sum(best < BBOB_TARGET for _, best in found)}

    return one


if __name__ == "__main__":
    serve({"cma_es": cma_es, "cma_es_to_target": cma_es_to_target, "bbob": bbob}, "cma", "numpy")
