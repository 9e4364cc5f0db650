"""The learned strategies that evosax ships, beside strategies by hand, on the functions of BBOB.

python scripts/learning/learned_strategies.py [--generations 100]

10 numbers, 32 members, 100 generations, 16 seeds, each of which draws its own optimum and start. A strategy's loss on a
function is the median over seeds of the best member's distance from the optimal value; over all functions the mean of
its ranks among the strategies, with a 95 % bootstrap interval over the functions, and on how many it is the best.
LearnedES and LearnedGA are told nothing that they were not when they were learned: members within [-5, 5], std 1.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from evosax import algorithms
from evosax.problems import bbob_fns
from scipy import stats as ranking

from evorl import BBOB, CMAES, CMAESHyperparams, Evosax, OpenES, OpenESHyperparams, Search, SearchHyperparams
from evorl.stats import interval

SIZE, MEMBERS, SEEDS = 10, 32, 16
STRATEGIES: dict[str, tuple[Any, Any]] = {
    "LearnedES": (Evosax(algorithms.LearnedES, MEMBERS), {"std_init": 1.0}),
    "DiscoveredES": (Evosax(algorithms.DiscoveredES, MEMBERS), {"std_init": 1.0}),
    "EvoTF_ES": (Evosax(algorithms.EvoTF_ES, MEMBERS), {"std_init": 1.0}),
    "CMAAnchoredLES": (Evosax(algorithms.CMAAnchoredLES, MEMBERS), {"std_init": 1.0}),
    "LearnedGA": (Evosax(algorithms.LearnedGA, MEMBERS), {"initial_std": 1.0}),
    "SNES": (Evosax(algorithms.SNES, MEMBERS), {"std_init": 1.0}),
    "CMA-ES": (CMAES(MEMBERS), CMAESHyperparams(initial_std=1.0)),
    "OpenES": (OpenES(MEMBERS), OpenESHyperparams(learning_rate=0.1, std=0.5)),
    "random": (Evosax(algorithms.RandomSearch, MEMBERS), {"initial_std": 2.5}),
}


def loss(name: str, strategy: str, generations: int) -> float:
    """The median over seeds of the best that any member was."""
    evolver, hyperparams = STRATEGIES[strategy]
    workflow = Search(BBOB(name, SIZE), evolver)

    def run(seed: jax.Array) -> jax.Array:
        key = jax.random.key(seed)
        state = workflow.init(key, SearchHyperparams(hyperparams))

        def step(state: Any, i: jax.Array) -> Any:
            state, metrics = workflow.step(state, jax.random.fold_in(key, i))
            return state, metrics["return_best"]

        return -jax.lax.scan(step, state, jnp.arange(generations))[1].max()

    return float(np.median(jax.jit(jax.vmap(run))(jnp.arange(SEEDS))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=100)
    generations = parser.parse_args().generations
    functions = sorted(bbob_fns)
    losses = np.array([[loss(name, strategy, generations) for strategy in STRATEGIES] for name in functions])
    ranks = ranking.rankdata(np.nan_to_num(losses, nan=np.inf), axis=1)
    print("| | " + " | ".join(STRATEGIES) + " |\n|---" * 1 + "|---" * len(STRATEGIES) + "|")
    for name, row in zip(functions, losses, strict=True):
        print(f"| {name} | " + " | ".join(f"{value:.3g}" for value in row) + " |")
    for strategy, rank in zip(STRATEGIES, ranks.T, strict=True):
        low, high = interval(rank)
        best = int((rank == ranks.min(1)).sum())
        print(
            f"{strategy:15} mean rank {rank.mean():.2f} [{low:.2f}, {high:.2f}], the best on {best} of {len(functions)}"
        )


if __name__ == "__main__":
    main()
