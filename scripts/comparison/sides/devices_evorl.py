"""Trainings of evorl on one device of a CPU, which uses all cores, and on two."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import devices_count
import jax
from brax_evorl import make_ppo as make_brax_ppo
from brax_sizes import UNROLL, count_iterations
from es_evorl import make_cartpole
from gpu_jobs import compile_training
from rl_evorl import make_ppo_seeds
from side import Round, serve
from workflows_evorl import equal
from workloads import WORKLOADS


class Training(NamedTuple):
    """A workflow, the iterations of a round, its work, and the number of seeds."""

    workflow: Any
    iterations: int
    work: float
    seeds: int = 1


def openes(size: int) -> Training:
    return Training(make_cartpole(size), 5, 5)


def seeds(size: int) -> Training:
    workflow = make_ppo_seeds()
    return Training(workflow, 50, 50 * size * workflow.num_transitions, size)


def pbt(size: int) -> Training:
    del size
    return Training(equal(WORKLOADS["E5-8"]()[0]), 2, 2)


def ppo_ant(size: int) -> Training:
    iterations = count_iterations("ant", size)
    return Training(make_brax_ppo("ant", size), iterations, iterations * size * UNROLL)


def train(make: Callable[[int], Training], size: int) -> Round:
    """Return rounds that continue a training on the devices, as `python -m evorl.train devices=` does."""
    workflow, iterations, work, count = make(size)
    call = compile_training(workflow, count, iterations, vectorized=False, devices=devices_count.COUNT)()

    def one(i: int) -> dict[str, float]:
        del i
        jax.block_until_ready(call())
        return {"work": work}

    return one


if __name__ == "__main__":
    makers = {"openes": openes, "seeds": seeds, "pbt": pbt, "ppo_ant": ppo_ant}
    serve({f"{name}_{devices_count.COUNT}": partial(train, make) for name, make in makers.items()}, "jax", "brax")
