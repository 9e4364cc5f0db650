"""The parts of evorl's iterations, each jitted alone: together, the bound of an iteration."""

from functools import partial

import jax
from side import Round, serve
from workflows_evorl import ROUNDS, equal
from workloads import KEY, WORKLOADS, compile_parts, jitted

from evorl.parts import resolve_numbers
from evorl.training.devices import fast_compile_options


def run_parts(workload: str, calls: int, size: int) -> Round:
    """Return rounds that run the parts of as many iterations as evorl's side does, one part after the other.

    Their shapes and trip counts are those of the third iteration.
    """
    del size
    workflow, _, count, make_parts = WORKLOADS[workload]()
    workflow = equal(workflow)
    init = jax.jit(workflow.init, compiler_options=fast_compile_options())
    step, state, metrics = jitted(workflow.step), init(KEY, resolve_numbers(workflow)), None
    for _ in range(3):
        state, metrics = step(state, KEY)
    programs = compile_parts(make_parts(workflow, state, metrics), getattr(state, "replay", None))

    def one(i: int) -> dict[str, float]:
        del i
        found = None
        for often, run in programs.values():
            for _ in range(calls * count * often):
                found = run()
            jax.block_until_ready(found)
        return {"work": calls * count}

    return one


if __name__ == "__main__":
    serve({name: partial(run_parts, *of) for name, of in ROUNDS.items()}, "jax", "brax")
