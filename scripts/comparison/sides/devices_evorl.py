"""Trainings of evorl on one device of a CPU, which uses all cores, and on two."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import devices_count
import jax
from brax_evorl import make_ppo as make_brax_ppo
from brax_sizes import UNROLL, count_iterations
from es_evorl import make_cartpole
from rl_evorl import make_ppo_seeds
from side import Round, serve
from workflows_evorl import equal
from workloads import WORKLOADS

from evorl.parts import resolve_numbers
from evorl.training.devices import compiler_options, fast_compile_options
from evorl.training.program import Program, make_run_args


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
    program = Program(workflow, range(count), iterations, side_by_side=False, devices=devices_count.COUNT)
    numbers = resolve_numbers(workflow)
    traced = program.trace(numbers)
    held = [traced.init.lower().compile(fast_compile_options())(program.keys, numbers)]
    run = traced.run.compile(compiler_options())

    def one(i: int) -> dict[str, float]:
        state, *_ = run(held[0], program.keys, *make_run_args(i * iterations, iterations, False))
        held[0] = jax.block_until_ready(state)
        return {"work": work}

    return one


if __name__ == "__main__":
    makers = {"openes": openes, "seeds": seeds, "pbt": pbt, "ppo_ant": ppo_ant}
    serve({f"{name}_{devices_count.COUNT}": partial(train, make) for name, make in makers.items()}, "jax", "brax")
