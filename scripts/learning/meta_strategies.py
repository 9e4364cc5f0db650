"""Meta-learn an evolution strategy and compare it with others on BBOB functions that it was not trained on.

python scripts/learning/meta_strategies.py [--generations 300] [--seeds 8]

The weights of LearnedES, with 16 members for 50 generations on 10 dimensions, are trained from scratch by OpenES with
64 members: Adam's rate 0.02, std 0.1, no decay. Twelve functions are for training and twelve are held out; none has a
rotated or otherwise related variant in the other set. All strategies are then evaluated on the same 32 tasks of each
function. The result is the number of digits of precision that the best member reaches; more is better.
"""

import argparse
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from evosax.algorithms import SNES, LearnedES
from evosax.problems import bbob_fns

from evorl import Evosax, OpenES, Search
from evorl.problems import LearnedStrategy
from evorl.stats import MeanEstimate

TRAINED = (
    *("sphere", "ellipsoidal", "ellipsoidal_rotated", "step_ellipsoidal", "rastrigin", "rastrigin_rotated"),
    *("bueche_rastrigin", "weierstrass", "schaffers_f7", "schaffers_f7_ill_cond", "gallagher_101_me"),
    "gallagher_21_hi",
)
HELD_OUT = tuple(name for name in bbob_fns if name not in TRAINED)
MEMBERS, TASKS, START = 16, 32, {"std_init": 1.0}
PROBLEM = LearnedStrategy(Evosax(LearnedES, MEMBERS), START, TRAINED)
WORKFLOW = Search(PROBLEM, OpenES(64, learning_rate=0.02, std=0.1, weight_decay=0.0))


def digits(problem: LearnedStrategy) -> Any:
    """Return a function from an evolver's numbers to the mean digits on each function, [functions], on fixed tasks."""
    keys = jax.random.split(jax.random.key(2026), TASKS)
    return jax.jit(lambda given: jax.vmap(problem.compute_digits, (0, None))(keys, given).mean(0))


def with_weights(params: Any) -> dict[str, Any]:
    """Return the numbers of an evolver with these weights."""
    return {"numbers": {**START, "params": params}}


def learned(generations: int, seeds: int) -> list[tuple[Any, Any]]:
    """Train each seed, and return its initial and final weights."""
    step = jax.jit(lambda state, keys: jax.lax.scan(WORKFLOW.step, state, keys)[0])
    found = []
    for seed in range(seeds):
        key_init, key = jax.random.split(jax.random.key(seed))
        first = jax.jit(WORKFLOW.init)(key_init)
        last = step(first, jax.random.split(key, generations))
        found.append((first.evolver.mean, last.evolver.mean))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    runs = learned(args.generations, args.seeds)
    shipped = PROBLEM.evolver.weights(jnp.zeros(PROBLEM.size))
    for title, functions in (("held out", HELD_OUT), ("trained on", TRAINED)):
        problem = replace(PROBLEM, functions=functions)
        of_weights, of_snes = digits(problem), digits(replace(problem, evolver=Evosax(SNES, MEMBERS)))
        before, after = (np.array([of_weights(with_weights(run[i])) for run in runs]) for i in (0, 1))
        ours, snes = np.asarray(of_weights(with_weights(shipped))), np.asarray(of_snes({"numbers": START}))
        print(f"\n{title} | untrained | learned here | shipped | SNES")
        for i, name in enumerate(functions):
            cells = f"{before[:, i].mean():.2f} | {MeanEstimate.from_scores(after[:, i]):.2f}"
            print(f"| {name} | {cells} | {ours[i]:.2f} | {snes[i]:.2f} |")
        by_seed = after.mean(1)
        means = [f"{MeanEstimate.from_scores(x):.3f}" for x in (before.mean(1), by_seed)]
        print(f"mean | {' | '.join(means)} | {ours.mean():.3f} | {snes.mean():.3f}")
        for name, other in (("untrained", before.mean(1)), ("shipped", ours.mean()), ("SNES", snes.mean())):
            print(f"better than {name} in {(by_seed > other).sum()} of {args.seeds}")
        print("by seed", by_seed.round(3), "untrained", before.mean(1).round(3))


if __name__ == "__main__":
    main()
