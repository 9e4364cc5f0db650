"""Compare the memory and time of a population drawn block by block during evaluation with one held in memory.

python scripts/benchmarks/big_populations.py                    of 16,384 members, 128 at once
python scripts/benchmarks/big_populations.py --iterations 2   runs iterations of both too, the latter in 5 GB

Temporaries are what the compiler reports for one iteration, its state given. Their unit is a block: the weights of the
members that are evaluated at once, 69,658 each, on CartPole. Iterations are timed without compilation. At the end, both
evolvers get the same fitness. The script then prints how far the first moment of their gradients is from NumPy's in
float64, for 3,000 weights, relative to the largest of them.
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
from evorl.agents.base_agent import fill_spaces
from evorl.ec import LowRankES, Noise, OpenES, SeededES
from evorl.ec.flatten import flatten_member
from evorl.ec.shaping import center_ranks
from evorl.envs.suites.gymnax import Gymnax
from evorl.parts import bind, resolve_numbers
from evorl.training.program import Program, make_run_args
from evorl.types import Array, Evolver
from evorl.workflows import Evolution

HASH, KEY, EXACT = Noise("hash"), jax.random.key(0), 3000


ENV = Gymnax("CartPole-v1")
POLICY = fill_spaces(MLPPolicy(hidden=(256, 264)), ENV)


def compiled(evolver: Evolver, at_once: int) -> tuple[Program, Any, Any, Any]:
    """Return the program, the numbers, the compiled iteration, and the shapes of a policy's parameters."""
    workflow = Evolution(ENV, POLICY, evolver, normalization="none", members_at_once=at_once)
    program, numbers = Program(workflow, [0], 1, True), resolve_numbers(workflow)
    state = jax.eval_shape(program.init, program.keys, numbers)
    run = jax.jit(program.run, donate_argnums=0).lower(state, program.keys, *make_run_args(0, 1, False)).compile()
    return program, numbers, run, state.agent.actor.params


def lived(program: Program, numbers: Any, run: Any, iterations: int) -> tuple[float, float]:
    """Run the iterations and return their seconds and env steps."""
    state, steps = jax.jit(program.init)(program.keys, numbers), 0.0
    start = time.perf_counter()
    for i in range(iterations):
        state, rows, _ = run(state, program.keys, *make_run_args(i, 1, False))
        steps += float(rows["env_steps"].sum())
    return time.perf_counter() - start, steps


def told(evolver: Any, mean: Any, fitness: Array) -> np.ndarray:
    """Return the first moment of the gradient after a generation with this fitness."""
    numbers = resolve_numbers(evolver)

    @jax.jit
    def generation(key: Any, fitness: Array) -> Any:
        state = bind(evolver, numbers).init(key, mean)
        genomes, state = bind(evolver, numbers).ask(key, state)
        return bind(evolver, numbers).tell(key, genomes, fitness, state)[0].moments.mu

    return np.asarray(generation(KEY, fitness))[:EXACT]


def exact(openes: OpenES, mean: Any, fitness: Array) -> np.ndarray:
    """Return the same moment computed with NumPy in float64, from the noise of the same members."""
    n, center = openes.population_size, flatten_member(mean)
    around = lambda: openes.noise.sample_members(0 * center, 1.0, None, KEY, n, mirrored=True)[:, :EXACT]  # noqa: E731
    noise = np.asarray(jax.jit(around)(), np.float64)
    gradient = np.asarray(center_ranks(fitness), np.float64) @ noise / (n * openes.std)
    return 0.1 * (gradient - openes.weight_decay / openes.std * np.asarray(center[:EXACT], np.float64))


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
    print("| of so many members | bytes of a block | bytes of temporaries | blocks | seconds | env steps |")
    print(f"|{'---|' * 6}")
    for name, evolver in evolvers.items():
        program, numbers, run, params = compiled(evolver, given.at_once)
        block, temporaries = given.at_once * tree.nbytes(params), run.memory_analysis().temp_size_in_bytes
        cells = [f"{name}, {given.members:,}", f"{block:,}", f"{temporaries:,}", f"{temporaries / block:.2f}"]
        if given.iterations:
            seconds, steps = lived(program, numbers, run, given.iterations)
            cells += [f"{seconds:.0f}", f"{steps:,.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    mean, fitness = POLICY.init(KEY).actor.params, jax.random.normal(KEY, (given.members,))
    true = exact(openes, mean, fitness)
    away = [
        np.abs(told(evolver, mean, fitness) - true).max() / np.abs(true).max() for evolver in (SeededES(openes), openes)
    ]
    print(f"\nWith the same fitness, {away[0]:.1e} from NumPy if drawn during evaluation, {away[1]:.1e} in memory")
    print(json.dumps(surroundings(1)))


if __name__ == "__main__":
    main()
