"""Multi-objective search with pymoo."""

# pyright: reportMissingImports=false
from collections.abc import Callable
from typing import Any

import numpy as np
from mo_problems import GENERATIONS, MEMBERS, REFERENCE
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.algorithms.moo.rvea import RVEA
from pymoo.indicators.hv import HV
from pymoo.operators.crossover.sbx import SBX
from pymoo.operators.mutation.pm import PM
from pymoo.optimize import minimize
from pymoo.problems import get_problem
from pymoo.util.ref_dirs import get_reference_directions
from side import Round, serve


def nsga2(size: int) -> Round:
    operators = {"crossover": SBX(eta=15, prob=0.9), "mutation": PM(eta=20)}
    return search(get_problem(f"zdt{size}"), lambda: NSGA2(pop_size=MEMBERS, **operators))


def rvea(size: int) -> Round:
    problem = get_problem(f"dtlz{size}", n_var=12, n_obj=3)
    return search(problem, lambda: RVEA(get_reference_directions("das-dennis", 3, n_partitions=13)))


def search(problem: Any, make: Callable[[], Any]) -> Round:
    """Return rounds that search with one seed and compute the hypervolume of the front."""
    volume = HV(ref_point=np.full(problem.n_obj, REFERENCE))

    def one(i: int) -> dict[str, float]:
        front = minimize(problem, make(), ("n_gen", GENERATIONS), seed=i + 1).F
        return {"work": GENERATIONS, "score": float(volume(front))}

    return one


if __name__ == "__main__":
    serve({"nsga2": nsga2, "rvea": rvea}, "pymoo", "numpy")
