"""Compare the Pareto fronts of hopper's speed and energy from NSGA-II with pymoo's NSGA-II on the same evaluations.

python scripts/learning/hopper_front.py                          four seeds, some ten minutes
python scripts/learning/hopper_front.py --seeds 1 --generations 10

The task is Brax hopper, spring, 200 steps that falling does not end. The policy is a tanh network, 11-16-16-3, whose
weights are kept within -2 and 2. Both algorithms have the same initial 128 members, 100 generations, an episode for
each member and generation, SBX eta 15 at 0.9, and polynomial mutation eta 20. Speed is the mean velocity, in m/s;
energy is the mean of the squared controls, at most 3.

The fronts of the last generation are evaluated again, with 16 fresh episodes each, the same for both. Their
hypervolumes are above a speed of 0 and below an energy of 3, divided by 3, so in m/s.
"""

# pyright: reportMissingImports=false
import argparse
import time
from dataclasses import replace
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import stats
from evorl.agents import MLPPolicy
from evorl.ec import NSGA2, objectives
from evorl.ec.flatten import flatten_population, unflatten_population
from evorl.ec.variation import BoundedSBX, PolynomialMutation
from evorl.envs.suites.brax import Brax
from evorl.parts import resolve_numbers
from evorl.workflows import Evolution

MEMBERS, STEPS, EPISODES, BOUND, MOST = 128, 200, 16, 2.0, 3.0
COST = 1e-3  # weight of the squared controls in Brax's hopper
SPREAD = {"x_velocity": 1.0, "reward_ctrl": 1 / COST}
REFERENCE = np.array([0.0, -MOST])


def searches(episodes: int = 1) -> Evolution:
    """Return the search, whose evaluations pymoo uses too."""
    options = {"terminate_when_unhealthy": False}
    env = Brax("hopper", "spring", STEPS, options, dict.fromkeys(SPREAD, "mean"))
    policy = MLPPolicy(hidden=(16, 16))
    bounds = {"low": -BOUND, "high": BOUND}
    evolver = NSGA2(MEMBERS, SPREAD, BoundedSBX(15.0, **bounds), PolynomialMutation(**bounds))
    return Evolution(env, policy, evolver, episodes, normalization="none")


def judge(workflow: Evolution) -> Any:
    """Return a function (state, rows [n, size], key) -> fitness [n, 2]."""

    def judged(state: Any, members: jax.Array, key: jax.Array) -> jax.Array:
        key_plan, key_play = jax.random.split(key)
        plan, _ = workflow.plan(state, key_plan)
        like = jax.tree.map(lambda x: x[0], plan.params)
        played = workflow.rollout(state, replace(plan, params=unflatten_population(members, like)), key_play)[1]
        means = jax.tree.map(lambda x: x.reshape(MEMBERS, -1).mean(1), played.stats.episode_means)
        return objectives.compute_objectives(SPREAD, means)

    return jax.jit(judged)


def ours(step: Any, state: Any, key: jax.Array, generations: int) -> np.ndarray:
    """Return the parents of evorl's last generation, [n, size]."""
    for i in range(generations):
        state, _ = step(state, jax.random.fold_in(key, i))
    return np.asarray(flatten_population(state.evolver.parents))


def theirs(evaluate: Any, state: Any, key: jax.Array, generations: int, seed: int) -> np.ndarray:
    """Return the population of pymoo's last generation, [n, size]."""
    from pymoo.algorithms.moo.nsga2 import NSGA2 as Peer  # noqa: N811
    from pymoo.core.problem import Problem
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.optimize import minimize

    first = np.asarray(flatten_population(state.evolver.children), float)
    calls = iter(range(10**9))

    class Hopper(Problem):
        """pymoo problem that evaluates members with evorl's search."""

        def _evaluate(self, x: Any, out: Any, *args: Any, **kwargs: Any) -> None:
            members = jnp.asarray(np.resize(x, (MEMBERS, x.shape[1])), jnp.float32)
            out["F"] = -np.asarray(evaluate(state, members, jax.random.fold_in(key, next(calls))), float)[: len(x)]

    problem: Any = Hopper(n_var=first.shape[1], n_obj=2, xl=-BOUND, xu=BOUND)
    start: Any = first
    algorithm = Peer(pop_size=MEMBERS, sampling=start, crossover=SBX(eta=15, prob=0.9), mutation=PM(eta=20))
    found: Any = minimize(problem, algorithm, ("n_gen", generations), seed=seed)
    return found.pop.get("X")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--generations", type=int, default=100)
    given = parser.parse_args()
    workflow, versions = searches(), [f"{name} {metadata.version(name)}" for name in ("jax", "brax", "pymoo")]
    print(", ".join(versions))
    evaluate, again = judge(workflow), judge(searches(EPISODES))
    init, numbers = jax.jit(workflow.init), resolve_numbers(workflow)
    step = jax.jit(workflow.step).lower(init(jax.random.key(0), numbers), jax.random.key(0)).compile()
    print("| seed | hypervolume, evorl | pymoo | fastest, evorl | pymoo | seconds, evorl | pymoo |\n|" + "---|" * 7)
    found = []
    for seed in range(given.seeds):
        keys = jax.random.split(jax.random.key(seed), 3)
        state = init(keys[0], numbers)
        evaluate(state, flatten_population(state.evolver.children), keys[1])  # compile before timing
        begun = time.perf_counter()
        fronts = [ours(step, state, keys[1], given.generations)]
        between = time.perf_counter()
        fronts.append(theirs(evaluate, state, keys[1], given.generations, seed))
        ended = time.perf_counter()
        fitness = [again(state, jnp.asarray(front, jnp.float32), keys[2]) for front in fronts]
        volumes = [float(objectives.hypervolume(one, jnp.asarray(REFERENCE))) / MOST for one in fitness]
        fastest = [float(one[:, 0].max()) for one in fitness]
        found.append(volumes)
        shown = [
            *(f"{value:.3f}" for value in (*volumes, *fastest)),
            f"{between - begun:.0f}",
            f"{ended - between:.0f}",
        ]
        print(f"| {seed} | {' | '.join(shown)} |", flush=True)
    for name, values in zip(("evorl", "pymoo"), np.transpose(found), strict=True):
        print(f"{name}: mean {stats.MeanEstimate.from_scores(values):.3f}")
    apart = stats.MeanEstimate.from_scores(-np.diff(found)[:, 0])  # paired: both start with the same members
    print(f"evorl's minus pymoo's, of the same seed: {apart:.3f}")


if __name__ == "__main__":
    main()
