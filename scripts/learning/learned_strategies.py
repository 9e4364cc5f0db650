"""Compare the learned evolution strategies of evosax with hand-designed ones on the BBOB functions.

python scripts/learning/learned_strategies.py [--generations 100]

The setting is 10 dimensions, 32 members, 100 generations and 16 seeds, each of which draws its own optimum and start.
The loss of a strategy on a function is the median, over seeds, of the best member's distance from the optimal value.
The summary has the mean of the strategy's ranks over all functions, with a 95 % interval over the functions, and the
number of functions on which it is the best. LearnedES and LearnedGA get the setting of their meta-training: members
within [-5, 5], std 1.
"""

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from evosax import algorithms
from evosax.problems import bbob_fns
from scipy import stats as ranking

from evorl import CMAES, Evosax, OpenES
from evorl.bounds import BoundTransform
from evorl.ec import search
from evorl.parts import bind, resolve_numbers
from evorl.problems import BBOB
from evorl.stats import MeanEstimate

SIZE, MEMBERS, SEEDS = 10, 32, 16
STRATEGIES: dict[str, Any] = {
    "LearnedES": Evosax(algorithms.LearnedES, MEMBERS, numbers={"std_init": 1.0}),
    "DiscoveredES": Evosax(algorithms.DiscoveredES, MEMBERS, numbers={"std_init": 1.0}),
    "EvoTF_ES": Evosax(algorithms.EvoTF_ES, MEMBERS, numbers={"std_init": 1.0}),
    "CMAAnchoredLES": Evosax(algorithms.CMAAnchoredLES, MEMBERS, numbers={"std_init": 1.0}),
    "LearnedGA": Evosax(algorithms.LearnedGA, MEMBERS, numbers={"initial_std": 1.0}),
    "SNES": Evosax(algorithms.SNES, MEMBERS, numbers={"std_init": 1.0}),
    "CMA-ES": CMAES(MEMBERS, initial_std=1.0),
    "OpenES": OpenES(MEMBERS, learning_rate=0.1, std=0.5),
    "random": Evosax(algorithms.RandomSearch, MEMBERS, numbers={"initial_std": 2.5}),
}


def losses(strategy: str, functions: list[str], generations: int) -> np.ndarray:
    """Return, for each function, the median over seeds of the best loss of any member."""
    evolver = STRATEGIES[strategy]
    problems = [BBOB(name, SIZE) for name in functions]
    of_members = [jax.vmap(partial(problem.evaluate, jax.random.key(0))) for problem in problems]
    box = BoundTransform(*BBOB.bounds)
    draw = lambda key: box.unfold(problems[0].init(key))  # noqa: E731

    def run(function: jax.Array, seed: jax.Array) -> jax.Array:
        key_mean, key_evolver, key = jax.random.split(jax.random.key(seed), 3)
        bound = bind(evolver, resolve_numbers(evolver))
        state = search.init_evolver_state(bound, key_evolver, draw(key_mean), draw)

        def step(state: Any, i: jax.Array) -> Any:
            key_ask, key_tell = jax.random.split(jax.random.fold_in(key, i))
            members, _, after = search.ask(bound, key_ask, state)
            fitness = jax.lax.switch(function, of_members, box.fold_array(members))
            told, _ = search.tell(bound, key_tell, members, fitness, search.merge_asked_state(after, state))
            return told, fitness.max()

        return -jax.lax.scan(step, state, jnp.arange(generations))[1].max()

    over_seeds = jax.vmap(run, (None, 0))
    each = jax.jit(lambda: jax.lax.map(lambda i: over_seeds(i, jnp.arange(SEEDS)), jnp.arange(len(functions))))
    return np.median(each(), axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=100)
    generations = parser.parse_args().generations
    functions = sorted(bbob_fns)
    table = np.array([losses(strategy, functions, generations) for strategy in STRATEGIES]).T
    ranks = ranking.rankdata(np.nan_to_num(table, nan=np.inf), axis=1)
    print("| | " + " | ".join(STRATEGIES) + " |\n|---" * 1 + "|---" * len(STRATEGIES) + "|")
    for name, row in zip(functions, table, strict=True):
        print(f"| {name} | " + " | ".join(f"{value:.3g}" for value in row) + " |")
    for strategy, rank in zip(STRATEGIES, ranks.T, strict=True):
        best = int((rank == ranks.min(1)).sum())
        print(f"{strategy:15} mean rank {MeanEstimate.from_scores(rank):.2f}, the best on {best} of {len(functions)}")


if __name__ == "__main__":
    main()
