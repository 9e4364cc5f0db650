"""Multi-objective search with evorl."""

from typing import Any

import jax
import jax.numpy as jnp
from evorl_training import train_from_scratch
from jax_rounds import score
from mo_problems import DIRECTIONS, GENERATIONS, MEMBERS, REFERENCE
from side import Round, serve

from evorl.ec import NSGA2, RVEA, objectives
from evorl.problems import DTLZ, ZDT
from evorl.workflows import Search


def nsga2(size: int) -> Round:
    return search(Search(ZDT(size), NSGA2(MEMBERS)))


def rvea(size: int) -> Round:
    return search(Search(DTLZ(size, 3), RVEA(DIRECTIONS, GENERATIONS)))


def search(workflow: Search) -> Round:
    """Return rounds that search with one seed and compute the hypervolume of the front."""

    def run(key: jax.Array) -> Any:
        front = workflow.results(train_from_scratch(workflow, key, GENERATIONS)[0])
        fitness = jnp.where(front.valid_mask[:, None], front.fitness, objectives.WORST_FITNESS)
        return objectives.hypervolume(fitness, jnp.full(fitness.shape[1], -REFERENCE))

    return score(run, GENERATIONS)


if __name__ == "__main__":
    serve({"nsga2": nsga2, "rvea": rvea}, "jax")
