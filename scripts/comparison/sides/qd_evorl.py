"""Quality diversity with evorl."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from evorl_training import train_from_scratch
from jax_rounds import scan_steps, score
from side import Round, serve

from evorl.agents import TD3
from evorl.ec import CMAES, MapElites
from evorl.ec.cells import GridArchive
from evorl.ec.cma_me import ImprovementEmitter
from evorl.ec.emitters import EliteEmitter, IsoLineEmitter, TwoEmitters
from evorl.envs.descriptors import FeetContact
from evorl.envs.suites.brax import Brax
from evorl.problems import LinearProjection
from evorl.types import QDEvaluation
from evorl.workflows import PGAME, Search

BATCH, EDGE = 1024, 50 * 5.12
SHAPES = {1_000: (40, 25), 10_000: (100, 100), 100_000: (400, 250)}


@dataclass(frozen=True)
class Arm:
    """Planar arm whose angles are given in [0, 1]; fitness is minus their standard deviation."""

    joints: int = 100
    bounds = (0.0, 1.0)

    def init(self, key: jax.Array) -> jax.Array:
        return jax.random.uniform(key, (self.joints,))

    def evaluate(self, key: jax.Array, params: jax.Array) -> QDEvaluation:
        del key
        along = jnp.cumsum((2 * params - 1) * jnp.pi)
        end = jnp.stack([jnp.cos(along).mean(), jnp.sin(along).mean()])
        return QDEvaluation(-params.std(), end / 2 + 0.5)


def search_from_scratch(problem: Any, evolver: MapElites, iterations: int, lowest: float) -> Round:
    """Return rounds of one search from scratch, whose score is the QD score above the lowest fitness."""
    workflow = Search(problem, evolver)

    def run(key: jax.Array) -> jax.Array:
        return train_from_scratch(workflow, key, iterations)[0].evolver.fittest_elites.sum_fitness(lowest)

    return score(run, iterations)


def map_elites(iterations: int) -> Round:
    return search_from_scratch(Arm(), MapElites(GridArchive(shape=(32, 32)), IsoLineEmitter(128)), iterations, -1.0)


def cma_me(iterations: int) -> Round:
    emitter = ImprovementEmitter(15, CMAES(36, active=False, initial_std=0.5))
    archive = GridArchive((-EDGE, -EDGE), (EDGE, EDGE), (100, 100))
    return search_from_scratch(LinearProjection(100), MapElites(archive, emitter), iterations, 0.0)


def pga_me(iterations: int) -> Round:
    """PGA-MAP-Elites on walker2d, with archives of the feet contacts."""
    env = FeetContact(Brax("walker2d", backend="spring", max_episode_steps=100, options={"debug": True}))
    emitter = TwoEmitters(IsoLineEmitter(50), EliteEmitter(50))
    evolver = MapElites(GridArchive(shape=(32, 32)), emitter, descriptors=("feet_contact",))
    workflow = PGAME(env, TD3(hidden=(64, 64)), evolver, capacity=100_000)
    return scan_steps(workflow.step, jax.jit(workflow.init)(jax.random.key(0)), iterations, iterations)


def archive(cells: int) -> Round:
    """Adds of 1,024 solutions, whose fitness rises, so that some enter."""
    grid, count = GridArchive(shape=SHAPES[cells]), 1_000
    genomes = jax.random.normal(jax.random.key(1), (BATCH, 100))

    def add(state: Any, key: jax.Array) -> tuple[Any, None]:
        elites, i = state
        fitness, descriptor = jax.random.normal(key, (BATCH,)) + 0.1 * i, jax.random.uniform(key, (BATCH, 2))
        return (grid.add(elites, genomes, QDEvaluation(fitness, descriptor), jnp.float32(1))[0], i + 1), None

    return scan_steps(add, (grid.empty(genomes), jnp.float32(0)), count, count)


if __name__ == "__main__":
    serve({"map_elites": map_elites, "cma_me": cma_me, "pga_me": pga_me, "archive": archive}, "jax", "brax")
