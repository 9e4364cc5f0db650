"""Compare CMA-ES with pycma (evaluations, successes) and with evosax (time).

python scripts/benchmarks/cma_es.py                          everything, about ten minutes, most of them pycma's
python scripts/benchmarks/cma_es.py --dimensions 10          only the small problems
python scripts/benchmarks/cma_es.py --only speed             one of: pycma, factor, restarts, speed

pycma     median evaluations to f < 1e-6 over the seeds, infinite if a run does not reach it; population
          (4 + 3 log n), start, sigma and active weights are the same; on Rastrigin, with population 200, the number
          of runs that succeed. evorl is float32 and vmapped over seeds; pycma is float64
factor    the same medians with a symmetric root of the covariance in each generation, and with Cholesky factors that
          are updated less and less often
restarts  Rastrigin with population 10
speed     ask and tell in turn with evosax, at 1000 parameters and population 128

If other jobs share the cores, set OPENBLAS_NUM_THREADS=1: its threads spin, and small solves take 40 times as long.
"""

import argparse
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peers_timing import Program, in_turn, surroundings

from evorl import tree
from evorl.ec import CMAES, DiagonalCovariance, FullCovariance, Restarts
from evorl.parts import bind, resolve_numbers
from evorl.types import Array, Evolver, Key

TARGET = 1e-6


@dataclass(frozen=True)
class Problem:
    name: str
    function: Callable[[Any], Any]  # of an array [..., n], of NumPy or JAX
    start: float
    sigma: float
    evaluations: int  # the budget, divided by the squared dimension


def ellipsoid(x: Any) -> Any:
    """Compute the ellipsoid function with condition number 1e6."""
    scales = 1e6 ** np.linspace(0, 1, x.shape[-1])
    return (scales.astype(x.dtype) * x**2).sum(-1)


def rosenbrock(x: Any) -> Any:
    return (100 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1 - x[..., :-1]) ** 2).sum(-1)


def rastrigin(x: Any) -> Any:
    """Compute the Rastrigin function in a form without the cancellation that would show in float32."""
    sin = np.sin if isinstance(x, np.ndarray) else jnp.sin
    return (x**2 + 20 * sin(np.float32(np.pi) * x) ** 2).sum(-1)


PROBLEMS = (
    Problem("sphere", lambda x: (x**2).sum(-1), 1.0, 0.5, 100),
    Problem("ellipsoid", ellipsoid, 1.0, 0.5, 100),
    Problem("Rosenbrock", rosenbrock, 0.0, 0.5, 100),
)
RASTRIGIN = Problem("Rastrigin", rastrigin, 3.0, 2.0, 1000)


def evaluations(problem: Problem, evolver: Evolver, n: int, seeds: int) -> np.ndarray:
    """Return the evaluations until the target for each seed, infinite if the budget does not suffice."""
    first = {"initial_std": problem.sigma}
    numbers = resolve_numbers(evolver, {"evolver": first} if isinstance(evolver, Restarts) else first)
    generations = problem.evaluations * n**2 // evolver.population_size

    def generation(i: Array, carry: Any, key: Key) -> Any:
        state, _, _ = carry
        key_ask, key_tell = jax.random.split(jax.random.fold_in(key, i))
        members, state = bind(evolver, numbers).ask(key_ask, state)
        values = problem.function(members)
        return bind(evolver, numbers).tell(key_tell, members, -values, state)[0], i + 1, values.min()

    def run(key: Key) -> tuple[Array, Array]:
        state = bind(evolver, numbers).init(key, jnp.full(n, problem.start))
        carry = tree.drop_weak_types((state, jnp.int32(0), jnp.float32(jnp.inf)))
        step = lambda i, carry: generation(i, carry, key)  # noqa: E731
        return tree.masked_fori_loop(jnp.int32(generations), step, carry, lambda carry: carry[2] >= TARGET)[1:]

    taken, best = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), seeds))
    return np.where(best < TARGET, taken * evolver.population_size, np.inf)


def pycma_evaluations(problem: Problem, population: int, n: int, seeds: int) -> np.ndarray:
    import cma  # only this comparison needs it

    taken = np.full(seeds, np.inf)
    for seed in range(seeds):
        options = {"popsize": population, "seed": seed + 1, "verbose": -9}
        search = cma.CMAEvolutionStrategy(n * [problem.start], problem.sigma, options)
        while search.countevals < problem.evaluations * n**2:
            members = search.ask()
            values = problem.function(np.array(members))
            search.tell(members, values.tolist())
            if values.min() < TARGET:
                taken[seed] = search.countevals
                break
    return taken


def population(n: int) -> int:
    return 4 + int(3 * math.log(n))


def beside_pycma(dimensions: list[int], seeds: int) -> None:
    print("| problem | n | population | evorl | pycma | ratio | got there |\n|---|---|---|---|---|---|---|")
    cases = [(problem, n, population(n)) for n in dimensions for problem in PROBLEMS]
    for problem, n, members in [*cases, (RASTRIGIN, 10, 200)]:
        ours = evaluations(problem, CMAES(members), n, seeds)
        theirs = pycma_evaluations(problem, members, n, seeds)
        a, b = np.median(ours), np.median(theirs)
        there = f"{np.isfinite(ours).sum()} and {np.isfinite(theirs).sum()} of {seeds}"
        ratio = a / b if np.isfinite(b) else math.nan
        print(f"| {problem.name} | {n} | {members} | {a:,.0f} | {b:,.0f} | {ratio:.3f} | {there} |", flush=True)


@dataclass(frozen=True)
class Root(FullCovariance):
    """Covariance whose factor is its symmetric root, as in the paper."""

    def whiten(self, factor: Array, steps: Array) -> Array:
        return jnp.linalg.solve(factor, steps.T).T

    def factorize(self, covariance: Array, old: Array, due: Array) -> Array:
        values, vectors = jnp.linalg.eigh(covariance)
        return jnp.where(due & (values[0] > 0), (vectors * jnp.sqrt(values)) @ vectors.T, old)


def factors(dimensions: list[int], seeds: int) -> None:
    ways = {"root": Root(0.0)} | {f"lag {lag:g}": FullCovariance(lag) for lag in (0.0, 0.1, 0.5, 1.0, 3.0)}
    print(f"| problem | n | {' | '.join(ways)} |\n|---|---|{'---|' * len(ways)}")
    for n in dimensions:
        for problem in PROBLEMS:
            row = [np.median(evaluations(problem, CMAES(population(n), covariance=c), n, seeds)) for c in ways.values()]
            print(f"| {problem.name} | {n} | {' | '.join(f'{median:,.0f}' for median in row)} |", flush=True)


def restarts(seeds: int) -> None:
    ways = {"plain": CMAES(10), "IPOP": Restarts(CMAES(10)), "BIPOP": Restarts(CMAES(10), bipop=True)}
    print("| Rastrigin, n 10, population 10 | got there | median evaluations |\n|---|---|---|")
    for name, evolver in ways.items():
        taken = evaluations(RASTRIGIN, evolver, 10, seeds)
        print(f"| {name} | {np.isfinite(taken).sum()} of {seeds} | {np.median(taken):,.0f} |", flush=True)


def generations(evolver: Any, n: int, calls: int, sign: float, *params: Any) -> Program:
    """Return a program that runs `calls` generations on the sphere; `params` are evosax's additional arguments."""

    def generation(state: Any, key: Key) -> Any:
        members, state = evolver.ask(key, state, *params)
        return evolver.tell(key, members, sign * (members**2).sum(-1), state, *params)[0]

    state = jax.jit(lambda key: evolver.init(key, jnp.ones(n), *params))(jax.random.key(0))
    args = (tree.drop_weak_types(state), jax.random.key(1))
    return Program(generation, args, calls, calls, restart=lambda state: state)


def speed(repeats: int, n: int = 1000, members: int = 128, calls: int = 20) -> None:
    from evosax.algorithms import CMA_ES

    peer = CMA_ES(members, jnp.ones(n))
    programs = {
        "evorl": generations(CMAES(members), n, calls, -1.0),
        "evorl, diagonal": generations(CMAES(members, covariance=DiagonalCovariance()), n, calls, -1.0),
        "evosax": generations(peer, n, calls, 1.0, peer.default_params.replace(std_init=0.1)),
    }
    print(json.dumps(surroundings(repeats)))
    print("| generation | ms | CPU ms | times evorl's, wall | CPU |\n|---|---|---|---|---|")
    for name, row in in_turn(programs, "us", repeats).items():
        ratios = f"{row.get('ratio', 1.0):.1f} | {row.get('ratio_cpu', 1.0):.1f}"
        print(f"| {name} | {row['us'] / 1000:.1f} | {1000 * row['cpu_s'] / calls:.1f} | {ratios} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=["pycma", "factor", "restarts", "speed"])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="cma")
    parts = {
        "pycma": lambda: beside_pycma(arguments.dimensions, arguments.seeds),
        "factor": lambda: factors(arguments.dimensions, arguments.seeds),
        "restarts": lambda: restarts(arguments.seeds),
        "speed": lambda: speed(arguments.repeats),
    }
    for name, part in parts.items():
        if arguments.only in (None, name):
            part()
            print()


if __name__ == "__main__":
    main()
