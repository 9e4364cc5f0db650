"""python -m tests.eight_devices CASE ...: what each case computes on up to eight devices and on one, as JSON by case.

exchanged: how many numbers devices exchange in an iteration of a search, by its evolver.
divided: how many rows of a replay buffer each device holds.
selected: the parents that selections choose, however the fitness is distributed.
"""

import json
import math
import re
import sys
from dataclasses import replace

import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", 8)

import jax.numpy as jnp  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

from evorl.agents import MLPPolicy  # noqa: E402
from evorl.ec import ARS, CEM, LowRankES, OpenES, SeededES, VanillaES  # noqa: E402
from evorl.envs.games.matrix import MatrixGame  # noqa: E402
from evorl.leagues.nfsp import NFSP  # noqa: E402
from evorl.leagues.training_oracle import make_single_player_env, with_env  # noqa: E402
from evorl.parts import resolve_numbers  # noqa: E402
from evorl.population import Pairs, Tournament, Truncation  # noqa: E402
from evorl.training.program import Program, make_run_args  # noqa: E402
from evorl.ued import PLR  # noqa: E402
from evorl.workflows import Evolution, base  # noqa: E402
from tests.contract import Case, described  # noqa: E402
from tests.contract_cases import AVERAGE, CASES, CEM_RL, LEVELS, OFF_POLICY, RESPONSE  # noqa: E402
from tests.tiny import ENV  # noqa: E402


def computed(case, devices=8, seeds=(0,), vectorized=True):
    """After three steps and an evaluation; each device has its part of what is spread."""
    parts = math.prod(base.parallel_axes(case.workflow).values())
    devices = max(n for n in range(1, devices + 1) if parts % n == 0)
    program = Program(case.workflow, seeds, 4, vectorized, devices)
    with jax.set_mesh(program.mesh):
        places = program.get_shardings(jax.eval_shape(program.init, program.keys, case.numbers))
        state = jax.jit(program.init, out_shardings=places)(program.keys, case.numbers)
        run = jax.jit(program.run, out_shardings=(places, None, None))
        state, _, _ = run(state, program.keys, *make_run_args(0, 2, False))
        state, step, _ = run(state, program.keys, *make_run_args(2, 1, False))
        *_, evaluation = run(state, program.keys, *make_run_args(3, 1, True))
    for leaf, place in zip(jax.tree.leaves(state), jax.tree.leaves(places), strict=True):
        parts = {shard.data.shape for shard in leaf.addressable_shards}
        assert parts == {place.shard_shape(leaf.shape)}, (case.name, place, leaf.shape, parts)
    return {"devices": devices} | described({"evaluation": evaluation, "state": state, "step": step})


def exchanged(evolver, **options):
    """Return counts of numbers: exchanged in an iteration of 16 members, in the largest all-gather, of one member."""
    policy = MLPPolicy(hidden=(24, 24))
    workflow = Evolution(ENV, policy, evolver, normalization="none", eval_episodes=16, scan_length=3, **options)
    program = Program(workflow, [0], 1, True, 8)
    with jax.set_mesh(program.mesh):
        state = jax.eval_shape(program.init, program.keys, {})
        places = program.get_shardings(state)
        run = jax.jit(program.run, out_shardings=(places, None, None))
        text = run.lower(state, program.keys, *make_run_args(0, 1, False)).compile().as_text()
    exchanged = {"all-gather": [0]}
    for results, operation in re.findall(r"= (.*?) ((?:all-|collective-|reduce-scatter|ragged)[\w-]*)\(", text):
        shapes = re.findall(r"\w\d+\[([\d,]*)\]", results)
        count = sum(math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes)
        exchanged.setdefault(operation, []).append(count)
    size = sum(x.size for x in jax.tree.leaves(state.agent.actor.params))
    return [sum(map(sum, exchanged.values())), max(exchanged["all-gather"]), size]


def divided(workflow):
    """Return counts of rows: of the replay buffer on each of four devices, of all, and of the largest all-gather."""
    program = Program(workflow, [0], 1, True, 4)
    traced = program.trace(resolve_numbers(workflow))
    table = traced.shapes.replay.tables["float32"]
    gathered = re.findall(r"= \w\d+\[([\d,]*)\]\S* all-gather", traced.run.compile().as_text())
    most = max(math.prod(map(int, filter(None, shape.split(",")))) for shape in gathered)
    return [table.sharding.shard_shape(table.shape)[0], table.shape[0], most // table.shape[1]]


def selected(selection):
    """Return the parents for one fitness: whole on each of eight devices, distributed over them, and on one device."""
    fitness = jnp.asarray(np.random.default_rng(0).normal(size=16).astype(np.float32)).at[3].set(jnp.nan)
    mesh = jax.make_mesh((8,), ("envs",), axis_types=(AxisType.Auto,))
    places = [NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("envs")), jax.devices()[0]]
    return [jax.jit(selection)(jax.random.key(0), jax.device_put(fitness, place)).tolist() for place in places]


FOUR = replace(LEVELS, num_envs=4, batch_size=24)
REPLAYING = {"capacity": 8, "replay_prob": 1.0}  # new levels, then replays and, where they have any, their children
GAME = MatrixGame("matching_pennies")  # of fixed starts; of drawn ones each device has its own
OF_PLAYER = make_single_player_env(GAME)
IN_BLOCKS = Evolution(ENV, MLPPolicy(hidden=(4,)), OpenES(16), members_at_once=4, eval_episodes=8, scan_length=3)
ON_FOUR = [
    Case("four_plr", PLR(FOUR, **REPLAYING)),
    Case("four_accel", PLR(FOUR, num_edits=2, **REPLAYING)),
    Case("four_accel_at_once", PLR(FOUR, num_edits=2, parallel=True, **REPLAYING)),
    Case("four_blocks", IN_BLOCKS),
    Case("four_nfsp", NFSP(GAME, with_env(RESPONSE, OF_PLAYER), with_env(AVERAGE, OF_PLAYER), 16, anticipation=0.5)),
]

if __name__ == "__main__":
    found = {}
    for case in [*CASES, *ON_FOUR]:
        if case.name in sys.argv:
            found |= {case.name: computed(case), f"{case.name} on one": computed(case, 1)}
    for case in [*CASES, *ON_FOUR]:
        if f"seeds_{case.name}" in sys.argv:
            of_seeds = {"seeds": (0, 1), "vectorized": False}
            several, one = computed(case, **of_seeds), computed(case, 1, **of_seeds)
            found |= {f"seeds_{case.name}": several, f"seeds_{case.name} on one": one}
    if "exchanged" in sys.argv:
        evolvers = LowRankES(16), SeededES(OpenES(16)), OpenES(16), ARS(16, 2), VanillaES(16, 4), CEM(16)
        found = {type(evolver).__name__: exchanged(evolver) for evolver in evolvers}
        found["OpenES in blocks"] = exchanged(OpenES(16), members_at_once=8)
    if "divided" in sys.argv:
        found = {"off_policy": divided(OFF_POLICY), "cem_rl": divided(CEM_RL)}
    if "selected" in sys.argv:
        selections = Truncation(0.25), Pairs(), Tournament(3)
        found = {type(selection).__name__: selected(selection) for selection in selections}
    json.dump(found, sys.stdout)
