"""Evolution strategies with EvoX."""

# pyright: reportMissingImports=false
from typing import Any

import torch
from es_functions import (
    GENERATIONS,
    LEARNING_RATE,
    MEMBERS,
    SIGMA,
    START,
    STD,
    STEPS,
    TARGET,
    count_members,
    limit_evaluations,
    rosenbrock,
    sphere,
)
from evox.algorithms import CMAES, XNES, OpenES
from evox.core import Problem, compile
from evox.workflows import EvalMonitor, StdWorkflow
from side import Round, serve


class Function(Problem):
    """A test function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def evaluate(self, pop: torch.Tensor) -> torch.Tensor:
        return self.function(pop)


def openes(size: int) -> Round:
    return iterate(OpenES(MEMBERS, torch.ones(size), LEARNING_RATE, STD, optimizer="adam"), STEPS[size])


def cma_es(size: int) -> Round:
    return iterate(CMAES(torch.ones(size), SIGMA, count_members(size)), GENERATIONS[size], compiles=False)


def xnes(size: int) -> Round:
    return iterate(XNES(torch.ones(size), SIGMA**2 * torch.eye(size), count_members(size)), GENERATIONS[size])


def iterate(algorithm: Any, count: int, compiles: bool = True) -> Round:
    """Return rounds of generations on the sphere."""
    workflow = StdWorkflow(algorithm, Function(sphere))
    workflow.init_step()
    step = compile(workflow.step) if compiles else workflow.step

    def one(i: int) -> dict[str, float]:
        for _ in range(count):
            step()
        return {"work": count}

    return one


def cma_es_to_target(size: int) -> Round:
    """One seed of Rosenbrock's function until a value below TARGET."""
    members = count_members(size)

    def one(i: int) -> dict[str, float]:
        torch.manual_seed(i)
        monitor = EvalMonitor(full_fit_history=False)
        workflow = StdWorkflow(CMAES(torch.full((size,), START), SIGMA, members), Function(rosenbrock), monitor)
        workflow.init_step()
        taken = members
        while not monitor.get_best_fitness() < TARGET and taken < limit_evaluations(size):
            workflow.step()
            taken += members
        return {"work": taken, "score": float(monitor.get_best_fitness())}

    return one


if __name__ == "__main__":
    serve({"openes": openes, "cma_es": cma_es, "xnes": xnes, "cma_es_to_target": cma_es_to_target}, "evox", "torch")
