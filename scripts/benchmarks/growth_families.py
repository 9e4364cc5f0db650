"""Define the families of growth.py: what grows, by which sizes, and the workflow or the work of each size."""

import json
import math
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from growth_measure import (
    Point,
    measure_evaluations,
    measure_host,
    measure_program,
    measure_seeds,
)

import evorl
from evorl import ec, problems, replay, ued
from evorl.agents.average_policy import AveragePolicy
from evorl.ec.multi_objective import MultiObjectiveEvolver
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.games.leduc import Leduc
from evorl.envs.maze import RandomWalls
from evorl.envs.mpe.spread import SimpleSpread
from evorl.envs.wrappers import FrameStack
from evorl.leagues.matchmaking import Roster
from evorl.leagues.nfsp import NFSP
from evorl.leagues.training_oracle import TrainingOracle, make_single_player_env
from evorl.population import Truncation
from evorl.workflows import Search, Vmapped

SMALL = (16, 16)  # hidden layers
POPULATION = 64, 640, 6400
ROWS = 10_000, 100_000, 1_000_000
POINTS = 20  # evaluations of a trial
CURVE_FIELDS = 25  # numbers of a row, as many as a row of PPO has


@dataclass(frozen=True)
class Family:
    """A size that grows, with everything else fixed."""

    grows: str  # what the size counts
    fixed: str
    sizes: tuple[int, ...]
    expected: float  # exponent of time: 1, or 0 if the size should not matter
    measure: Callable[[int], Point]


def pendulum() -> Any:
    return evorl.Gymnax("Pendulum-v1")


def cartpole() -> Any:
    return evorl.Gymnax("CartPole-v1")


def kuhn() -> Any:
    return ExtensiveFormGame(Kuhn())


def policy_search(evolver: Any) -> Any:
    policy = evorl.MLPPolicy(hidden=SMALL)
    return evorl.Evolution(pendulum(), policy, evolver, normalization="none", eval_episodes=4)


def ppo(num_envs: int, num_steps: int = 32, env: Any = None) -> Any:
    agent = evorl.PPO(hidden=SMALL)
    return evorl.OnPolicy(env or cartpole(), agent, num_envs, num_steps, 1, 128, eval_episodes=4)


def off_policy(agent: Any, env: Any, capacity: int, **options: Any) -> Any:
    sizes: Any = {"num_envs": 4, "num_steps": 4, "num_updates": 16, "batch_size": 64, "random_steps": 1000}
    return evorl.OffPolicy(env, agent, capacity=capacity, eval_episodes=4, **sizes | options)


def fill_ring(state: Any) -> Any:
    """Return the state with a replay buffer that counts as full, so that batches are spread over all rows."""
    ring = state.replay
    return replace(state, replay=ring.replace(size=ring.size * 0 + ring.capacity))


def grow(make: Callable[[int], Any], **options: Any) -> Callable[[int], Point]:
    """Return a function that measures the program of make(size)."""
    return lambda size: measure_program(make(size), **options)


def map_elites(cells: int, descriptors: tuple[str, ...], low: Any, high: Any) -> Any:
    side = math.isqrt(cells) if len(low) == 2 else cells
    shape = (side, -(-cells // side)) if len(low) == 2 else (cells,)
    return ec.MapElites(ec.GridArchive(low, high, shape), ec.IsoLineEmitter(64), descriptors=descriptors)


def on_arm(evolver: Any) -> Any:
    return Search(problems.Arm(), evolver)


def arm_cells(cells: int) -> Any:
    return on_arm(map_elites(cells, ("descriptor",), (-1.0, -1.0), (1.0, 1.0)))


def policy_cells(cells: int) -> Any:
    policy = evorl.MLPPolicy(hidden=(8,))
    evolver = map_elites(cells, ("return",), (-2000.0,), (0.0,))
    return evorl.Evolution(pendulum(), policy, evolver, normalization="none", eval_episodes=4)


def centroids(cells: int) -> Any:
    archive = ec.CVTArchive((-1.0, -1.0), (1.0, 1.0), cells=cells, samples=max(4 * cells, 1000))
    return on_arm(ec.MapElites(archive, ec.IsoLineEmitter(64)))


def fronts(evolver: Callable[[int], MultiObjectiveEvolver], problem: Any, size: int) -> Any:
    return Search(problem, evolver(size))


def mazes(capacity: int = 1000, side: int = 7, num_edits: int = 0) -> Any:
    env = evorl.Maze(RandomWalls(side, side, fewest=side, most=side), max_episode_steps=32)
    student = evorl.OnPolicy(env, evorl.PPO(hidden=SMALL), 16, 32, 1, 128, eval_episodes=4)
    return ued.PLR(student, capacity=capacity, num_edits=num_edits)


def half_fill_levels(state: Any) -> Any:
    """Return the state with half of its level buffer filled with copies, from which size on levels are replayed."""
    table = state.buffer.score_table
    table = replace(table, size=table.size * 0 + -(-table.capacity // 2))
    return replace(state, buffer=replace(state.buffer, score_table=table))


def team(centralized: bool, num_agents: int) -> Any:
    env = evorl.MPE(SimpleSpread(num_agents, num_agent_neighbors=2, num_landmark_neighbors=2))
    agent = evorl.Team(evorl.PPO(hidden=SMALL), centralized=centralized)
    sizes: Any = {"normalize_observations": False, "normalize_values": False}
    return evorl.OnPolicy(env, agent, 4, 25, 1, 50, eval_episodes=4, **sizes)


def player() -> Any:
    agent = evorl.PPO(hidden=SMALL)
    return evorl.OnPolicy(make_single_player_env(kuhn()), agent, 4, 8, 1, 32, eval_episodes=4)


def league(roster: Roster) -> Any:
    return evorl.League(kuhn(), player(), roster)


def thirds(size: int) -> Roster:
    return Roster(size // 3, size // 3, size // 3, 4)


def exact_pool(capacity: int) -> Any:
    game: Any = ExtensiveFormGame(Leduc())
    return evorl.PSRO(game, capacity=capacity)


def trained_pool(capacity: int) -> Any:
    oracle: Any = TrainingOracle(player(), iterations=2)
    return evorl.PSRO(kuhn(), oracle, capacity=capacity, episodes=16)


def measure_policies(size: int) -> Point:
    """Measure three iterations after which there are `size` policies, of a pool with 256 places."""
    before = max(size - 4, 0)
    return measure_program(exact_pool(256), chunk=256, warmup=before, count=min(3, size - 1), restart=True)


def reservoir(size: int) -> Any:
    response = off_policy(evorl.DQN(hidden=SMALL), make_single_player_env(kuhn()), 10_000, policy_delay=1)
    return NFSP(kuhn(), response, AveragePolicy(hidden=SMALL), reservoir=size)


def measure_sampler(sampler: str, observing: bool, size: int) -> Point:
    """Measure the time to claim a trial of a sweep with `size` trials, or to record one of its evaluations."""
    from evorl.sweeps import definition, space_options
    from evorl.sweeps.store import SweepStore
    from evorl.sweeps.trials import DONE, Evaluation

    chosen = ["agent=ppo", "env=cartpole"]
    variants, space = space_options.parse_search(chosen, ["space.env_steps=${log_uniform:20_000,200_000}"])
    node = space_options.build_sampler_node(sampler, {})
    found = definition.SweepDefinition(variants, space, node, "return", "env_steps", 0)
    with tempfile.TemporaryDirectory() as top:
        settings = {"trials": 10 * size, "workers": 1, "vmapped": 1, "vectorized": None, "seed": 0}
        store = SweepStore.create(Path(top), settings | {"definition": found.to_data()})
        fill_trials(store.folder, space, size)
        suggests = found.build_sampler()
        with store.register_owner() as owner:
            if not observing:

                def ask() -> None:
                    (trial,) = store.claim_trials(owner, 1, space, suggests)
                    store.end_trial(trial.number, DONE)

                return measure_host(ask, warmup=1)
            (trial,) = store.claim_trials(owner, 1, space, suggests)
            shares: Iterator[float] = iter(np.linspace(0.3, 0.99, 101).tolist())  # from 0.2 on, trials are compared

            def observe() -> None:
                share = next(shares)
                store.observe(trial.number, Evaluation(share, 100_000 * share, share))

            return measure_host(observe, warmup=1, most=100)


def fill_trials(folder: Path, space: Any, count: int) -> None:
    """Write finished trials with random points, and a curve of each, into the file of a sweep."""
    from evorl.sweeps.database import NAME

    points = np.random.default_rng(0).uniform(size=(count, space.size))
    scores = np.random.default_rng(1).uniform(size=(count, POINTS)).cumsum(1)

    def trials() -> Iterator[Any]:
        for number, point in enumerate(points):
            yield number, json.dumps(point.tolist()), json.dumps(space.decode(point))

    def curves() -> Iterator[Any]:
        for number in range(count):
            for i in range(POINTS):
                used = (i + 1) / POINTS
                yield number, used, 100_000 * used, float(scores[number, i])

    with closing(sqlite3.connect(folder / NAME)) as file, file:
        file.executemany("INSERT INTO trials VALUES (?, ?, ?, 'done', NULL, 0, '')", trials())
        file.executemany("INSERT INTO curves VALUES (?, ?, ?, ?)", curves())


def measure_rows(share: float, size: int) -> Point:
    """Measure the time to read the curve of a run with `size` rows, and to make the table and the charts of it.

    Args:
        share: Fraction of the rows that are evaluations.
        size: Number of rows.
    """
    from evorl.reports.charts import plot_learning_curves
    from evorl.reports.curves import group_by_task, group_curves, read_curve
    from evorl.reports.tables import make_final_table

    every = round(1 / share)
    with tempfile.TemporaryDirectory() as top:
        with (Path(top) / "metrics.jsonl").open("w") as file:
            for i in range(size):
                row = {"kind": "evaluation" if i % every == 0 else "train", "iteration": i, "seconds": 0.1 * i}
                row |= {"env_steps": 100.0 * i, "return": float(i), "return_error": 1.0, "episodes": 16.0}
                row |= {f"metric_{j}": i / (1 + j) for j in range(CURVE_FIELDS - len(row))}
                file.write(json.dumps(row) + "\n")

        def read() -> None:
            found = group_by_task(group_curves([read_curve(top, [])]))
            make_final_table(found)
            for curves in found.values():
                plot_learning_curves(curves, {curve.label: "#000000" for curve in curves})

        return measure_host(read)


def frames(capacity: int) -> Any:
    env = FrameStack(evorl.Maze(RandomWalls(7, 7, fewest=7, most=7), max_episode_steps=32), 4)
    agent = evorl.DQN(hidden=(8,), encoder=evorl.CNN((4,), (2,), (1,)))
    return off_policy(agent, env, capacity, replay=replay.FrameReplay(4), policy_delay=1)


def sequences(capacity: int) -> Any:
    agent = evorl.SAC(hidden=(8,), core=evorl.GRU(8))
    options = {"replay": replay.SequenceReplay(length=8, burn_in=2, stride=4), "batch_size": 16, "num_updates": 4}
    return off_policy(agent, pendulum(), capacity, **options)


def cem_rl(capacity: int) -> Any:
    agent = evorl.TD3(hidden=SMALL)
    options: Any = {"min_updates": 8, "max_updates": 8, "batch_size": 64, "random_steps": 1000, "eval_episodes": 4}
    return evorl.CEMRL(pendulum(), agent, ec.CEM(4), capacity=capacity, **options)


FAMILIES: dict[str, Family] = {
    "openes": Family(
        "individuals of OpenES", "Pendulum, [16, 16]", POPULATION, 1, grow(lambda n: policy_search(ec.OpenES(n)))
    ),
    "ga": Family(
        "individuals of a GA", "Pendulum, [16, 16]", POPULATION, 1, grow(lambda n: policy_search(ec.GA(n, n // 4)))
    ),
    "cma_es": Family(
        "individuals of CMA-ES",
        "sphere, 100 parameters",
        POPULATION,
        1,
        grow(lambda n: Search(problems.Sphere(100), ec.CMAES(n))),
    ),
    "cma_es_parameters": Family(
        "parameters of CMA-ES",
        "sphere, 16 individuals",
        (20, 200, 2000),
        1,
        grow(lambda n: Search(problems.Sphere(n), ec.CMAES(16)), chunk=100, count=100),
    ),
    "sep_cma_es_parameters": Family(
        "parameters of sep-CMA-ES",
        "sphere, 16 individuals",
        (2000, 20_000, 200_000),
        1,
        grow(lambda n: Search(problems.Sphere(n), ec.CMAES(16, covariance=ec.DiagonalCovariance()))),
    ),
    "openes_parameters": Family(
        "parameters of OpenES",
        "sphere, 16 individuals",
        (2000, 20_000, 200_000),
        1,
        grow(lambda n: Search(problems.Sphere(n), ec.OpenES(16))),
    ),
    "environments": Family(
        "environments of PPO", "CartPole, 32 steps, minibatches of 128", (16, 160, 1600), 1, grow(ppo)
    ),
    "seeds_vectorized": Family(
        "seeds of PPO, vectorized",
        "CartPole, 4 environments x 32 steps",
        (1, 10, 100),
        1,
        partial(measure_seeds, partial(ppo, 4), True),
    ),
    "seeds_sequential": Family(
        "seeds of PPO, one after the other",
        "CartPole, 4 environments x 32 steps",
        (1, 10, 100),
        1,
        partial(measure_seeds, partial(ppo, 4), False),
    ),
    "members": Family(
        "members of PBT",
        "PPO, CartPole, 4 environments x 32 steps",
        (4, 40, 400),
        1,
        grow(
            lambda n: evorl.PBT(Vmapped(ppo(4), n), Truncation(0.25), search=("learning_rate",), steps_per_generation=1)
        ),
    ),
    "replay": Family(
        "rows of a replay buffer",
        "TD3, Pendulum, 16 updates of 64 rows",
        ROWS,
        0,
        grow(lambda n: off_policy(evorl.TD3(hidden=SMALL), pendulum(), n), prepare=fill_ring),
    ),
    "prioritized": Family(
        "rows of prioritized replay",
        "DQN, CartPole, 16 updates of 64 rows",
        ROWS,
        0,
        grow(
            lambda n: off_policy(
                evorl.DQN(hidden=SMALL), cartpole(), n, replay=replay.PrioritizedReplay(), policy_delay=1
            )
        ),
    ),
    "sequences": Family(
        "rows of sequence replay", "SAC with a GRU, Pendulum, 4 updates of 16 sequences", ROWS, 0, grow(sequences)
    ),
    "frames": Family("rows of frame replay", "DQN, maze, 16 updates of 64 rows", ROWS, 0, grow(frames)),
    "cem_rl": Family("rows of the replay buffer of CEM-RL", "4 individuals, 8 updates", ROWS, 0, grow(cem_rl)),
    "reservoir": Family("rows of a reservoir", "NFSP, Kuhn poker", ROWS, 0, grow(reservoir)),
    "archive": Family("cells of a grid archive", "MAP-Elites, Arm, 64 children", ROWS, 0, grow(arm_cells)),
    "archive_policies": Family(
        "cells of a grid archive of policies",
        "MAP-Elites, Pendulum, [8], 64 children",
        ROWS,
        0,
        grow(policy_cells),
    ),
    "centroids": Family(
        "cells of a CVT archive", "MAP-Elites, Arm, 64 children", (100, 1000, 10_000), 1, grow(centroids)
    ),
    "novelty": Family(
        "places of a novelty archive",
        "Arm, 64 individuals",
        (1000, 10_000, 100_000),
        0,
        grow(lambda n: on_arm(ec.Novelty(ec.GA(64, 16), capacity=n))),
    ),
    "nsga2": Family(
        "individuals of NSGA-II, two objectives",
        "ZDT1, 30 parameters",
        (40, 400, 4000),
        1,
        grow(lambda n: Search(problems.ZDT(), ec.NSGA2(n))),
    ),
    "nsga2_single": Family(
        "individuals of NSGA-II, one objective",
        "sphere, 30 parameters",
        (40, 400, 4000),
        1,
        grow(lambda n: Search(problems.Sphere(30), ec.NSGA2(n))),
    ),
    "ippo": Family("agents of IPPO", "MPE spread, each sees 2 agents", (3, 30, 300), 1, grow(partial(team, False))),
    "mappo": Family("agents of MAPPO", "MPE spread, each sees 2 agents", (3, 30, 300), 1, grow(partial(team, True))),
    "pool": Family(
        "places of the pool of PSRO, exact",
        "Leduc poker, the same five policies",
        (25, 250, 2500),
        0,
        grow(exact_pool, chunk=4, warmup=0, count=4, restart=True),
    ),
    "pool_trained": Family(
        "places of the pool of PSRO, trained",
        "Kuhn poker, PPO, the same five policies",
        (16, 160, 1600),
        0,
        grow(trained_pool, chunk=4, warmup=0, count=4, restart=True),
    ),
    "policies": Family("policies of PSRO, exact", "Leduc poker, 256 places", (2, 20, 200), 1, measure_policies),
    "league": Family(
        "learners of a league",
        "Kuhn poker, PPO, 4 past policies each",
        (3, 30, 300),
        1,
        grow(lambda n: league(thirds(n))),
    ),
    "league_past": Family(
        "places for past policies of a league",
        "Kuhn poker, 3 learners",
        (10, 100, 1000),
        0,
        grow(lambda n: league(Roster(1, 1, 1, n))),
    ),
    "levels": Family(
        "places of a level buffer",
        "PLR, 7 x 7 mazes, 16 levels x 32 steps",
        (1000, 10_000, 100_000),
        0,
        grow(mazes, prepare=half_fill_levels, count=16),
    ),
    "maze": Family(
        "cells of a maze",
        "PLR, 1,000 levels",
        (49, 484, 4900),
        1,
        grow(lambda cells: mazes(side=math.isqrt(cells)), count=16),
    ),
    "claim_random": Family(
        "trials of a sweep: claiming one, random search",
        "PPO, 6 searched options, 20 evaluations each",
        (100, 1000, 10_000),
        0,
        partial(measure_sampler, "random", False),
    ),
    "claim": Family(
        "trials of a sweep: claiming one, default sampler",
        "PPO, 6 searched options, 20 evaluations each",
        (100, 1000, 10_000),
        0,
        partial(measure_sampler, "protein", False),
    ),
    "observe": Family(
        "trials of a sweep: recording an evaluation",
        "PPO, 6 searched options, 20 evaluations each",
        (100, 1000, 10_000),
        0,
        partial(measure_sampler, "random", True),
    ),
    "rows": Family(
        "rows of a run: reading and drawing its curve",
        "one of 10 rows is an evaluation",
        (1000, 10_000, 100_000),
        1,
        partial(measure_rows, 0.1),
    ),
    "evaluations": Family(
        "evaluations of a training",
        "PPO, CartPole, 4 environments x 32 steps, 400 iterations",
        (4, 40, 400),
        0,
        partial(measure_evaluations, partial(ppo, 4), 400),
    ),
}
