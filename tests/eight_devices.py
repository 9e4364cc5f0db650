"""python -m tests.eight_devices CASE ...: what each case of the contract computes on eight devices, as JSON by case."""

import json
import math
import sys

import jax

jax.config.update("jax_num_cpu_devices", 8)

from evorl.training.program import Program, job  # noqa: E402
from evorl.workflows import base  # noqa: E402
from tests.test_contract import CASES, META_CASES, described  # noqa: E402


def computed(case):
    """After three steps and an evaluation, as it is recorded of one device; each has its part of what is spread."""
    devices = math.gcd(8, math.prod(base.parallel(case.workflow).values()))
    program = Program(case.workflow, [0], 4, True, devices)
    with jax.set_mesh(program.mesh):
        places = program.placed(jax.eval_shape(program.init, program.keys, case.hyperparams))
        state = jax.jit(program.init, out_shardings=places)(program.keys, case.hyperparams)
        run = jax.jit(program.run, out_shardings=(places, None, None))
        state, _, _ = run(state, program.keys, *job(0, 2, False))
        state, step, _ = run(state, program.keys, *job(2, 1, False))
        *_, evaluation = run(state, program.keys, *job(3, 1, True))
    spread = base.axes(case.workflow, state)
    for leaf, axis in zip(jax.tree.leaves(state), jax.tree.leaves(jax.tree.broadcast(spread, state)), strict=True):
        parts = {shard.data.shape for shard in leaf.addressable_shards}
        whole = leaf.shape if not axis else (leaf.shape[0] // devices, *leaf.shape[1:])
        assert parts == {whole}, (case.name, axis, leaf.shape, parts)
    return {"devices": devices} | described({"evaluation": evaluation, "state": state, "step": step})


if __name__ == "__main__":
    cases = {case.name: case for case in (*CASES, *META_CASES)}
    json.dump({name: computed(cases[name]) for name in sys.argv[1:]}, sys.stdout)
