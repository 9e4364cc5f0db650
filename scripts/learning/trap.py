"""Novelty search and a genetic algorithm on reward in the maze with a trap: in how many of eight seeds each solves it.

python scripts/learning/trap.py [--generations 100]

Populations of 128 policies of 16 x 16, and centers beside them, one episode of at most 100 steps each; the same GA for
both, and the same ES.
Solved: the solution reaches the goal. Also the generation in which the first member did, by seed.
"""

import argparse
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agents import MLPPolicy
from evorl.ec import GA, GAHyperparams, OpenES, OpenESHyperparams
from evorl.ec.novelty import Novelty, NoveltyHyperparams
from evorl.ec.novelty_es import NoveltyES, NoveltyESHyperparams
from evorl.ec.variation import GaussianMutationHyperparams
from evorl.envs.maze.point_maze import PointMaze
from evorl.parts import read_numbers
from evorl.workflows import Evolution

SEEDS = 8
OF_GA, OF_ES = GAHyperparams(mutation=GaussianMutationHyperparams(std=0.1)), OpenESHyperparams(0.05, 0.1)
CASES = {
    "GA on reward": (GA(), OF_GA),
    "GA on novelty": (Novelty(GA(), ("position",)), NoveltyHyperparams(OF_GA)),
    "OpenES on reward": (OpenES(), OF_ES),
    "OpenES on novelty": (Novelty(OpenES(), ("position",)), NoveltyHyperparams(OF_ES)),
    "OpenES on both": (Novelty(OpenES(), ("position",)), NoveltyHyperparams(OF_ES, 0.5)),
    "NS-ES, 5 centers": (NoveltyES(OpenES(), 5, ("position",)), NoveltyESHyperparams(OF_ES, 1.0)),
    "NSR-ES, 5 centers": (NoveltyES(OpenES(), 5, ("position",)), NoveltyESHyperparams(OF_ES)),
}


def found(evolver: Any, hyperparams: Any, generations: int) -> np.ndarray:
    """The highest return of each generation [seeds, generations]; 0 is the goal."""
    env = PointMaze()
    agent = MLPPolicy()
    workflow = Evolution(env, agent, evolver, normalization="none")

    def run(seed: jax.Array) -> jax.Array:
        key = jax.random.key(seed)
        state = workflow.init(key, replace(read_numbers(workflow), evolver=hyperparams))

        def step(state: Any, i: jax.Array) -> Any:
            state, metrics = workflow.step(state, jax.random.fold_in(key, i))
            return state, metrics["return_best"]

        return jax.lax.scan(step, state, jnp.arange(generations))[1]

    return np.asarray(jax.jit(jax.vmap(run))(jnp.arange(SEEDS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=100)
    generations = parser.parse_args().generations
    for name, (evolver, hyperparams) in CASES.items():
        best = found(evolver, hyperparams, generations)
        solved = (best == 0).any(1)
        when = [int(np.argmax(row == 0)) if any(row == 0) else "never" for row in best]
        print(f"{name:24} solved by {solved.sum()} of {SEEDS}, first in generation {when}; best {best.max(1).round(2)}")


if __name__ == "__main__":
    main()
