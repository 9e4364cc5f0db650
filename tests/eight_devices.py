"""python -m tests.eight_devices CASE ...: what each case of the contract computes on eight devices, as JSON by case."""

import json
import math
import sys
from dataclasses import replace

import jax

jax.config.update("jax_num_cpu_devices", 8)

from evorl.training.program import Program, job  # noqa: E402
from evorl.workflows import PLR, PLRHyperparams, base  # noqa: E402
from tests.test_contract import CASES, LEVELS, META_CASES, Case, described  # noqa: E402


def computed(case, devices=8):
    """After three steps and an evaluation, as it is recorded of one device; each has its part of what is spread."""
    devices = math.gcd(devices, math.prod(base.parallel(case.workflow).values()))
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


FOUR = replace(LEVELS, num_envs=4, batch_size=24)
REPLAYING = PLRHyperparams(replay=1.0)  # new levels, then replays and, where they have any, their children
CURRICULA = [
    Case("four_plr", PLR(FOUR, capacity=8), REPLAYING),
    Case("four_accel", PLR(FOUR, capacity=8, num_edits=2), REPLAYING),
    Case("four_accel_at_once", PLR(FOUR, capacity=8, num_edits=2, side_by_side=True), REPLAYING),
]

if __name__ == "__main__":
    cases = {case.name: case for case in (*CASES, *META_CASES)}
    found = {name: computed(cases[name]) for name in sys.argv[1:] if name in cases}
    for case in CURRICULA:
        if case.name in sys.argv:  # which the contract does not record, as the same are in it for three slots
            found |= {case.name: computed(case), f"{case.name} on one": computed(case, 1)}
    json.dump(found, sys.stdout)
