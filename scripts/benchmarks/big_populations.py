"""What a population needs that is drawn where it plays, beside one that is all in memory.

python scripts/benchmarks/big_populations.py                    of 16,384 members, 128 at once
python scripts/benchmarks/big_populations.py --iterations 2   lives iterations of both too, the latter in 5 GB

Temporaries are the compiler's, of an iteration that is given its state, in blocks: the weights of the members that play
side by side, 69,658 each, on CartPole. Iterations are timed without compiling; what two searches with the same numbers
are apart after them is the largest difference of any weight of their means.
"""

import argparse
import json
import time
from typing import Any

import jax
import numpy as np
from peers_timing import surroundings

from evorl import tree
from evorl.agents import MLPPolicy
from evorl.ec import LowRankES, Noise, OpenES, SeededES
from evorl.envs.gymnax import Gymnax
from evorl.training.program import Program, job
from evorl.types import Evolver
from evorl.workflows import Evolution

HASH = Noise("hash")


def compiled(evolver: Evolver, at_once: int) -> tuple[Program, Any, Any, Any]:
    """The program, the hyperparameters, its iteration, compiled, and the shapes of a policy."""
    env = Gymnax("CartPole-v1")
    policy = MLPPolicy(env.observation_space, env.action_space, hidden=(256, 264))
    workflow = Evolution(env, policy, evolver, normalization="none", members_at_once=at_once)
    program, hyperparams = Program(workflow, [0], 1, True), workflow.hyperparams()
    state = jax.eval_shape(program.init, program.keys, hyperparams)
    run = jax.jit(program.run, donate_argnums=0).lower(state, program.keys, *job(0, 1, False)).compile()
    return program, hyperparams, run, state.agent.actor.params


def lived(program: Program, hyperparams: Any, run: Any, iterations: int) -> tuple[Any, float, float]:
    """The mean after so many iterations, and their seconds and env steps."""
    state, steps = jax.jit(program.init)(program.keys, hyperparams), 0.0
    start = time.perf_counter()
    for i in range(iterations):
        state, rows, _ = run(state, program.keys, *job(i, 1, False))
        steps += float(rows["env_steps"].sum())
    return state.evolver.mean, time.perf_counter() - start, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=16_384)
    parser.add_argument("--at-once", type=int, default=128)
    parser.add_argument("--iterations", type=int, default=0)
    given = parser.parse_args()
    openes = OpenES(given.members, noise=HASH)
    evolvers = {
        "OpenES drawn where it plays": SeededES(openes),
        "OpenES in memory": openes,
        "low rank, rank 1": LowRankES(given.members, noise=HASH),
    }
    means = []
    print("| of so many members | bytes of a block | bytes of temporaries | blocks | seconds | env steps |")
    print(f"|{'---|' * 6}")
    for name, evolver in evolvers.items():
        program, hyperparams, run, params = compiled(evolver, given.at_once)
        block, temporaries = given.at_once * tree.nbytes(params), run.memory_analysis().temp_size_in_bytes
        cells = [f"{name}, {given.members:,}", f"{block:,}", f"{temporaries:,}", f"{temporaries / block:.2f}"]
        if given.iterations:
            mean, seconds, steps = lived(program, hyperparams, run, given.iterations)
            means.append(jax.tree.leaves(mean))
            cells += [f"{seconds:.0f}", f"{steps:,.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    if means:
        apart = max(np.abs(x - y).max() for x, y in zip(*means[:2], strict=True))
        moved = max(np.abs(x - y).max() for x, y in zip(means[1], means[2], strict=True))
        print(f"\nOpenES drawn where it plays and in memory are {apart:.1e} apart; low rank and OpenES {moved:.1e}")
    print(json.dumps(surroundings(1)))


if __name__ == "__main__":
    main()
