"""Multi-objective search with evorl."""

from typing import Any

import jax
import jax.numpy as jnp
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

    @jax.jit
    def run(key: Any) -> Any:
        key_init, key_steps = jax.random.split(key)
        keys = jax.random.split(key_steps, GENERATIONS)
        front = workflow.results(jax.lax.scan(workflow.step, workflow.init(key_init), keys)[0])
        fitness = jnp.where(front.valid_mask[:, None], front.fitness, objectives.WORST_FITNESS)
        return objectives.hypervolume(fitness, jnp.full(fitness.shape[1], -REFERENCE))

    return lambda i: {"work": GENERATIONS, "score": float(run(jax.random.key(i)))}


if __name__ == "__main__":
    serve({"nsga2": nsga2, "rvea": rvea}, "jax")
