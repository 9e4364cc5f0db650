"""Compare novelty search with search on reward, by a GA and by an ES, in the maze with a trap: eight seeds.

python scripts/learning/trap.py [--generations 100]

A population has 128 policies of 16 x 16, in addition to the centers; each policy has one episode of at most 100 steps.
The GA is the same in all cases, and so is the ES. A seed has solved the maze if a member reaches the goal. Printed is
also the first generation in which a member did, by seed.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agents import MLPPolicy
from evorl.ec import GA, OpenES
from evorl.ec.novelty import Novelty
from evorl.ec.novelty_es import NoveltyES
from evorl.ec.variation import GaussianMutation
from evorl.envs.maze.point_maze import PointMaze
from evorl.workflows import Evolution

SEEDS = 8
GENETIC, STRATEGY = GA(mutation=GaussianMutation(std=0.1)), OpenES(learning_rate=0.05, std=0.1)
CASES = {
    "GA on reward": GENETIC,
    "GA on novelty": Novelty(GENETIC, ("position",)),
    "OpenES on reward": STRATEGY,
    "OpenES on novelty": Novelty(STRATEGY, ("position",)),
    "OpenES on both": Novelty(STRATEGY, ("position",), novelty_weight=0.5),
    "NS-ES, 5 centers": NoveltyES(STRATEGY, 5, ("position",), novelty_weight=1.0),
    "NSR-ES, 5 centers": NoveltyES(STRATEGY, 5, ("position",)),
}


def found(evolver: Any, generations: int) -> np.ndarray:
    """Return the highest return of each generation, [seeds, generations]; 0 is the goal."""
    env = PointMaze()
    agent = MLPPolicy()
    workflow = Evolution(env, agent, evolver, normalization="none")

    def run(seed: jax.Array) -> jax.Array:
        key = jax.random.key(seed)
        state = workflow.init(key)

        def step(state: Any, i: jax.Array) -> Any:
            state, metrics = workflow.step(state, jax.random.fold_in(key, i))
            return state, metrics["return_best"]

        return jax.lax.scan(step, state, jnp.arange(generations))[1]

    return np.asarray(jax.jit(jax.vmap(run))(jnp.arange(SEEDS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=100)
    generations = parser.parse_args().generations
    for name, evolver in CASES.items():
        best = found(evolver, generations)
        solved = (best == 0).any(1)
        when = [int(np.argmax(row == 0)) if any(row == 0) else "never" for row in best]
        print(f"{name:24} solved by {solved.sum()} of {SEEDS}, first in generation {when}; best {best.max(1).round(2)}")


if __name__ == "__main__":
    main()
