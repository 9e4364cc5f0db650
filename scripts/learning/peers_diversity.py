"""Compare quality diversity with QDax and pyribs at equal evaluations, eight seeds, in an environment with both.

pip install "qdax==0.5.0" "ribs==0.12.0"
python scripts/learning/peers_diversity.py arm          MAP-Elites and QDax's, on QDax's arm of 100 joints
python scripts/learning/peers_diversity.py walker       the same for policies: walker2d's feet, 100 steps, spring
python scripts/learning/peers_diversity.py sphere       CMA-ME and pyribs', on the linear projection of 100 numbers
python scripts/learning/peers_diversity.py mae          CMA-MAE on the same, alone
python scripts/learning/peers_diversity.py gradients    PGA-MAP-Elites and MAP-Elites on the walkers

MAP-Elites has 1,024 cells, batches of 128, iso 0.005 and line 0.05; it runs 1,000 batches of arms, 100 of walkers.
CMA-ME has 10,000 cells, 15 searches of 36 and sigma 0.5; it runs 1,000 iterations. Printed are the QD score, relative
to the lowest possible fitness, and the coverage, each with a 95 % interval over the seeds. QDax uses evorl's problems
and episodes, so both solve the same task.
"""

import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agents import TD3, MLPPolicy
from evorl.ec.cells import GridArchive
from evorl.ec.cma_es import CMAES
from evorl.ec.cma_me import ImprovementEmitter
from evorl.ec.emitters import EliteEmitter, IsoLineEmitter, TwoEmitters
from evorl.ec.map_elites import MapElites
from evorl.envs.descriptors import FeetContact
from evorl.envs.suites.brax import Brax
from evorl.problems import LinearProjection
from evorl.stats import MeanEstimate
from evorl.types import QDEvaluation
from evorl.workflows import PGAME, Evolution, Search

SEEDS, BATCH = 8, 128


@dataclass(frozen=True)
class QDaxArm:
    """QDax's arm, with angles in [0, 1]."""

    joints: int = 100
    bounds = (0.0, 1.0)

    def init(self, key: jax.Array) -> jax.Array:
        return jax.random.uniform(key, (self.joints,))

    def evaluate(self, key: jax.Array, params: jax.Array) -> QDEvaluation:
        from qdax.tasks.arm import arm  # pyright: ignore[reportMissingImports]  # not a dependency of evorl

        del key
        return QDEvaluation(*arm(params))


def walker() -> Evolution:
    env = FeetContact(Brax("walker2d", backend="spring", max_episode_steps=100, options={"debug": True}))
    agent = MLPPolicy(hidden=(64, 64), activation="tanh")
    evolver = MapElites(emitter=IsoLineEmitter(BATCH), descriptors=("feet_contact",))
    return Evolution(env, agent, evolver, normalization="none", scan_length=20)


def gradients() -> None:
    """Compare on four seeds, 100 generations of 100 members, all networks of 64 x 64."""
    env = walker().env
    descriptors = ("feet_contact",)
    agent = TD3(hidden=(64, 64))
    emitters = TwoEmitters(IsoLineEmitter(50), EliteEmitter(50))
    alone = MapElites(emitter=IsoLineEmitter(100), descriptors=descriptors)
    for name, workflow in {
        "MAP-Elites": Evolution(env, agent, alone, normalization="none"),
        "PGA-ME": PGAME(env, agent, MapElites(emitter=emitters, descriptors=descriptors)),
    }.items():
        ours(workflow, 100, 0.0, name, 4)


def told(name: str, found: Any, least: float, began: float) -> None:
    """Print a line of the scores; `found` is (fitness, filled), each [seeds, cells]."""
    fitness, filled = found
    score = np.where(filled, np.asarray(fitness) - least, 0).sum(1)
    for what, values in (("QD score", score), ("coverage", np.asarray(filled).mean(1))):
        print(f"{name:8} {what:9} {MeanEstimate.from_scores(values):10.4g}", end="  ")
    print(f"{time.perf_counter() - began:.0f} s", flush=True)


def ours(workflow: Any, iterations: int, least: float, name: str = "evorl", seeds: int = SEEDS) -> None:
    """Run all seeds at once and print their scores."""
    began = time.perf_counter()

    def run(seed: jax.Array) -> Any:
        key = jax.random.key(seed)
        state = workflow.init(key)
        step = lambda state, i: (workflow.step(state, jax.random.fold_in(key, i))[0], None)  # noqa: E731
        elites = jax.lax.scan(step, state, jnp.arange(iterations))[0].evolver.fittest_elites
        return elites.fitness, elites.filled

    told(name, jax.jit(jax.vmap(run))(jnp.arange(seeds)), least, began)


def qdax(draw: Any, score: Any, iterations: int, least: float, bounds: tuple[float, ...] = ()) -> None:
    """Run QDax's MAP-Elites and print its scores.

    The arguments are draw(key) -> genome and score(genomes [n], key) -> (fitness, descriptor within [0, 1]).
    """
    from functools import partial

    from qdax.core.containers.mapelites_repertoire import (  # pyright: ignore[reportMissingImports]  # no dependency
        compute_euclidean_centroids,
    )
    from qdax.core.emitters.mutation_operators import isoline_variation  # pyright: ignore[reportMissingImports]
    from qdax.core.emitters.standard_emitters import MixingEmitter  # pyright: ignore[reportMissingImports]
    from qdax.core.map_elites import MAPElites  # pyright: ignore[reportMissingImports]

    limits = dict(zip(("minval", "maxval"), bounds, strict=False))
    variation = partial(isoline_variation, iso_sigma=0.005, line_sigma=0.05, **limits)
    emitter = MixingEmitter(lambda x, y: (x, y), variation, 1.0, BATCH)
    search = MAPElites(lambda x, key: (*score(x, key), {}), emitter, lambda repertoire: {})
    centroids = compute_euclidean_centroids((32, 32), 0.0, 1.0)
    began = time.perf_counter()

    def run(seed: jax.Array) -> Any:
        key, key_init, key_draw = jax.random.split(jax.random.key(seed), 3)
        first = jax.vmap(draw)(jax.random.split(key_draw, BATCH))
        state = search.init(first, centroids, key_init)[:2]
        (repertoire, _, _), _ = jax.lax.scan(search.scan_update, (*state, key), length=iterations - 1)
        fitness = repertoire.fitnesses.reshape(-1)
        return fitness, fitness > -jnp.inf

    told("QDax", jax.jit(lambda: jax.lax.map(run, jnp.arange(SEEDS)))(), least, began)


def pyribs(iterations: int, edge: float) -> None:
    from ribs import archives  # pyright: ignore[reportMissingImports]  # no dependency of evorl
    from ribs.emitters import EvolutionStrategyEmitter  # pyright: ignore[reportMissingImports]
    from ribs.schedulers import Scheduler  # pyright: ignore[reportMissingImports]

    problem = LinearProjection(100)
    evaluate = jax.jit(jax.vmap(lambda x: problem.evaluate(jax.random.key(0), x)))
    began, fitness, filled = time.perf_counter(), np.zeros((SEEDS, 10_000)), np.zeros((SEEDS, 10_000), bool)
    for seed in range(SEEDS):
        archive = archives.GridArchive(solution_dim=100, dims=(100, 100), ranges=[(-edge, edge)] * 2, seed=seed)
        searches = [
            EvolutionStrategyEmitter(
                archive, x0=np.zeros(100), sigma0=0.5, ranker="2imp", batch_size=36, seed=100 * seed + i
            )
            for i in range(15)
        ]
        scheduler = Scheduler(archive, searches)
        for _ in range(iterations):
            found = evaluate(jnp.asarray(scheduler.ask(), jnp.float32))
            scheduler.tell(np.asarray(found.fitness, float), np.asarray(found.descriptor, float))
        data = archive.data()
        fitness[seed, data["index"]], filled[seed, data["index"]] = data["objective"], True
    told("pyribs", (fitness, filled), 0.0, began)


def main() -> None:
    case = sys.argv[1]
    if case == "arm":
        problem = QDaxArm()
        ours(Search(problem, MapElites(emitter=IsoLineEmitter(BATCH))), 1000, -1.0)

        def of_arms(arms: Any, key: jax.Array) -> Any:
            found = jax.vmap(lambda arm: problem.evaluate(key, arm))(arms)
            return found.fitness, found.descriptor

        qdax(problem.init, of_arms, 1000, -1.0, (0.0, 1.0))
    elif case == "gradients":
        gradients()
    elif case == "walker":
        workflow = walker()
        ours(workflow, 100, 0.0)
        state = jax.jit(workflow.init)(jax.random.key(0))

        def of_policies(members: Any, key: jax.Array) -> Any:
            plan = replace(workflow.plan(state, key)[0], params=members)
            means = workflow.rollout(state, plan, key)[1].stats.episode_means
            return means["return"], means["feet_contact"]

        draw = lambda key: workflow.agent.init(key).actor.params  # noqa: E731
        qdax(draw, of_policies, 100, 0.0)
    else:
        edge, mae = 50 * 5.12, case == "mae"
        archive = GridArchive((-edge, -edge), (edge, edge), (100, 100), threshold_min=0.0 if mae else -float("inf"))
        search = CMAES(36, active=False, initial_std=0.5)
        emitter = ImprovementEmitter(15, search, "improvement" if mae else "two_stage")
        evolver = MapElites(archive, emitter, archive_learning_rate=0.01 if mae else 1.0)
        ours(Search(LinearProjection(100), evolver), 1000, 0.0)
        if case == "sphere":
            pyribs(1000, edge)


if __name__ == "__main__":
    main()
