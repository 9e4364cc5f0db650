"""Compare searches for levels of high true regret for a fixed student, and correlate other scores with true regret.

python scripts/learning/level_search.py runs/stages/ppo_maze_7_7_3_100_20_20_maze_gru
python scripts/learning/level_search.py RUN --levels 2000 --seeds 2 --random 500      a try

RUN is an on-policy agent of mazes (`stages.py levels`, the first run). Each search scores --levels levels, 100 at a
time. The score is the optimal return minus the mean of 4 sampled episodes; a level scored several times has the mean.
The 32 levels of highest score are evaluated again, with 64 episodes each, since the scores that selected them are
biased upwards. Intervals are over search seeds.

The second table has Spearman's rank correlations over --random levels. They relate scores, as a curriculum with 4
environments per level computes them, to the true regret of 16 other episodes. Intervals are over the students of the
run.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import rankdata

from evorl import GA, OnPolicy, OpenES, stats, tree
from evorl.ec import GaussianMutation
from evorl.envs.maze import paths
from evorl.training.runs import restore_run
from evorl.training.suites.level_episodes import run_on_levels
from evorl.ued import (
    Curation,
    EvolvedLevels,
    L1ValueLoss,
    Learnability,
    LevelBuffer,
    MaxMC,
    NegativeReturn,
    Outcome,
    PositiveValueLoss,
    TrueRegret,
    curricula,
)
from evorl.ued.generators import BredLevels, LevelGenerator, SampledLevels
from evorl.vector_env import LevelStarts, require_level_env

AT_ONCE = 100
EPISODES, FRESH, APART = 4, 64, 16  # of a level: in a search, to measure the best levels, to correlate other scores
BEST = 32
REGRET = TrueRegret()
SCORES = (MaxMC(), PositiveValueLoss(), L1ValueLoss(), Learnability(), NegativeReturn(), REGRET)


@dataclass(frozen=True)
class Children:
    """ACCEL's search: new levels, or children of levels drawn as for a replay; levels with high scores are kept.

    The student is fixed, so a replay would only score a level once more. The parents are therefore not
    played.
    """

    env: Any
    capacity: int = 1000
    num_edits: int = 5
    often: float = 0.5  # replay probability p, once half of the buffer is full

    def init(self, key: Any, env: Any, n: int) -> LevelBuffer:
        del n
        return LevelBuffer.empty(self.capacity, jax.eval_shape(env.sample_level, key, env.default_params))

    def ask(self, key: Any, state: LevelBuffer, env: Any, n: int, env_params: Any) -> Any:
        key_new, key_choice, key_draw, key_edit = jax.random.split(key, 4)
        new = curricula.sample_levels(env, key_new, env_params, n)
        replays = jax.random.bernoulli(key_choice, self.often) & (2 * state.size >= self.capacity)
        places, state = state.sample_indices(key_draw, n, Curation(), replays)
        mutate = jax.vmap(partial(env.mutate_level, num_edits=self.num_edits))
        levels = tree.select(replays, mutate(jax.random.split(key_edit, n), state.get_levels(places)), new)
        return levels, levels, state

    def tell(self, key: Any, genomes: Any, score: Any, state: LevelBuffer) -> LevelBuffer:
        del key
        return state.insert_levels(genomes, score, jnp.zeros_like(score), self.env.is_same_level, Curation())


def searches(env: Any) -> dict[str, LevelGenerator]:
    """Return the searches by name, with the library's hyperparameters except for the genetic algorithm.

    The genomes of the genetic algorithm are standard normal at the start. A mutation changes the sign of
    about three of 49 walls.
    """
    ga = GA(AT_ONCE, mutation=GaussianMutation(std=0.2), initial_std=1.0, crossover_rate=0.5)
    return {
        "random": SampledLevels(),
        "evolved, OpenES": EvolvedLevels(OpenES(AT_ONCE)),
        "evolved, GA": EvolvedLevels(ga),
        "bred": BredLevels(),
        "ACCEL": Children(env),
    }


def regret(workflow: Any, state: Any, levels: Any, episodes: int, key: Any) -> Any:
    """Return the true regret of levels, leaves [n, ...], from whole episodes on each."""
    several = jax.tree.map(lambda x: jnp.repeat(x, episodes, axis=0), levels)
    returns = run_on_levels(workflow, state, several, True, key).returns[None]
    optimum = jax.vmap(require_level_env(workflow.env).optimal_return)(levels)  # pyright: ignore[reportAttributeAccessIssue]
    return REGRET(Outcome(returns, jnp.ones_like(returns, bool), optimum=optimum, repeats=episodes))


def search(workflow: OnPolicy, generator: LevelGenerator, count: int) -> Callable[[Any, Any], Any]:
    """Return a function (state, key) -> (all levels, leaves [count, ...], their scores)."""
    env = require_level_env(workflow.env)

    @jax.jit
    def searched(state: Any, key: Any) -> Any:
        def generation(found: Any, key: Any) -> Any:
            key_ask, key_play, key_tell = jax.random.split(key, 3)
            levels, genomes, found = generator.ask(key_ask, found, env, AT_ONCE, state.env_params)
            score = regret(workflow, state, levels, EPISODES, key_play)
            return generator.tell(key_tell, genomes, score, found), (levels, score)

        key_init, key_search = jax.random.split(key)
        first = generator.init(key_init, env, AT_ONCE)
        return tree.merge_axes(jax.lax.scan(generation, first, jax.random.split(key_search, count // AT_ONCE))[1])

    return searched


def best(levels: Any, score: np.ndarray) -> tuple[Any, float, int]:
    """Return the levels of highest score, their mean score, and the number of different levels."""
    marks = np.asarray(jax.vmap(tree.hash_tree)(levels))
    _, first, group = np.unique(marks, axis=0, return_index=True, return_inverse=True)
    mean = np.bincount(group.ravel(), score) / np.bincount(group.ravel())
    top = np.argsort(-mean, kind="stable")[:BEST]
    return jax.tree.map(lambda leaf: leaf[first[top]], levels), float(mean[top].mean()), len(first)


def compare(workflow: OnPolicy, state: Any, count: int, seeds: int) -> None:
    again = jax.jit(lambda state, levels, key: regret(workflow, state, levels, FRESH, key))
    print(f"| search | true regret of its best {BEST} | by the search itself | path | walls | different | seconds |")
    print(f"|{'---|' * 7}")
    for name, generator in searches(require_level_env(workflow.env)).items():
        searched, rows = search(workflow, generator, count), []
        for seed in range(seeds):
            key_search, key_again = jax.random.split(jax.random.key(seed))
            began = time.perf_counter()
            levels, score = jax.device_get(searched(state, key_search))
            seconds = time.perf_counter() - began  # for the first seed with compilation
            chosen, flattered, different = best(levels, score)
            measured = float(again(state, chosen, key_again).mean())
            path, walls = jax.vmap(paths.path_length)(chosen).mean(), chosen.grid.sum((1, 2)).mean()
            rows.append([measured, flattered, path, walls, different, seconds])
        columns = np.array(rows).T
        means = [f"{values.mean():.{digits}f}" for values, digits in zip(columns[1:], (3, 1, 1, 0, 0), strict=True)]
        print(f"| {name} | {interval(columns[0])} | {' | '.join(means)} |", flush=True)


def interval(values: np.ndarray) -> str:
    return f"{stats.MeanEstimate.from_scores(values):.3f}"


def scored(workflow: OnPolicy) -> Callable[[Any, Any], Any]:
    """Return a function that scores AT_ONCE new levels, (state, key) -> (true regret, SCORES, solvable).

    All leaves have shape [AT_ONCE].
    """
    env, player = require_level_env(workflow.env), replace(workflow, num_envs=EPISODES * AT_ONCE, batch_size=0)
    curricula.check_student(player)

    @jax.jit
    def of_new(state: Any, key: Any) -> Any:
        key_levels, key_plan, key_play, key_apart = jax.random.split(key, 4)
        levels = curricula.sample_levels(env, key_levels, state.env_params, AT_ONCE)
        starts = LevelStarts(tree.broadcast(jax.tree.map(lambda x: jnp.repeat(x, EPISODES, axis=0), levels), 1))
        plan = replace(player.plan(state, key_plan)[0], starts=starts, restart=True)
        rollout = player.rollout(replace(state, envs=None), plan, key_play)[1].stored
        never = jnp.full(AT_ONCE, -jnp.inf)
        outcome = curricula.compute_outcome(player, state, rollout, player.build_batch(state, rollout), levels, never)
        assert outcome.optimum is not None
        apart = regret(workflow, state, levels, APART, key_apart)
        return apart, [score(outcome) for score in SCORES], outcome.optimum > 0

    return of_new


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's rank correlation."""
    return np.corrcoef(rankdata(a), rankdata(b))[0, 1]


def correlate(workflow: OnPolicy, states: list[Any], count: int) -> None:
    of_new, keys = scored(workflow), jax.random.split(jax.random.key(20261124), count // AT_ONCE)
    found, share = [], 0.0
    for state in states:
        parts = [jax.device_get(of_new(state, key)) for key in keys]
        apart, scores, solvable = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        share = solvable.mean()  # the same for all students, as their levels are
        found.append([(correlation(apart, x), correlation(apart[solvable], x[solvable])) for x in scores])
    print(f"\n| score | all of {count:,} random levels | the {share:.0%} that can be solved |\n|---|---|---|")
    for score, of_students in zip(SCORES, np.array(found).transpose(1, 2, 0), strict=True):
        print(f"| {type(score).__name__} | {' | '.join(map(interval, of_students))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--levels", type=int, default=20_000, help="of each search")
    parser.add_argument("--seeds", type=int, default=4, help="of each search; its student is the first of the run")
    parser.add_argument("--random", type=int, default=5000, help="levels of which scores are compared")
    given = parser.parse_args()
    run = restore_run(given.run, "run", "last")
    first, seeds = run.cfg["seed"], run.cfg["num_seeds"]
    workflow, state = run.select_policy(first, None)
    if not isinstance(workflow, OnPolicy):
        parser.error(f"{given.run}: holds {type(workflow).__name__}, not an on-policy agent by itself")
    compare(workflow, state, given.levels, given.seeds)
    correlate(workflow, [run.select_policy(first + i, None)[1] for i in range(seeds)], given.random)


if __name__ == "__main__":
    main()
