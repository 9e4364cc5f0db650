"""Quality diversity with QDax.

Its PGA-MAP-Elites imports a class of environments of `brax.v1`, which Brax no longer has, for annotations only.
"""

import sys
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax_rounds import scan_steps, score
from qdax.core.containers.mapelites_repertoire import (  # pyright: ignore[reportMissingImports]
    MapElitesRepertoire,
    compute_euclidean_centroids,
)
from qdax.core.emitters.mutation_operators import isoline_variation  # pyright: ignore[reportMissingImports]
from qdax.core.emitters.standard_emitters import MixingEmitter  # pyright: ignore[reportMissingImports]
from qdax.core.map_elites import MAPElites  # pyright: ignore[reportMissingImports]
from qdax.tasks.arm import arm_scoring_function  # pyright: ignore[reportMissingImports]
from qdax.tasks.brax.v2.env_creators import (  # pyright: ignore[reportMissingImports]
    create_default_brax_task_components,
)
from side import Round, serve

base_env: Any = ModuleType("base_env")
base_env.QDEnv = object
sys.modules["qdax.tasks.brax.v1.envs.base_env"] = base_env

from qdax.core.emitters.pga_me_emitter import PGAMEConfig, PGAMEEmitter  # noqa: E402  # pyright: ignore[reportMissingImports]

BATCH = 1024
SHAPES = {1_000: (40, 25), 10_000: (100, 100), 100_000: (400, 250)}
VARIATION = partial(isoline_variation, iso_sigma=0.005, line_sigma=0.05)


def map_elites(iterations: int) -> Round:
    emitter = MixingEmitter(lambda x, key: (x, key), partial(VARIATION, minval=0.0, maxval=1.0), 1.0, 128)
    search = MAPElites(arm_scoring_function, emitter, lambda repertoire: {})
    centroids = compute_euclidean_centroids((32, 32), 0.0, 1.0)

    def run(key: jax.Array) -> jax.Array:
        key_arms, key_init, key_steps = jax.random.split(key, 3)
        state = search.init(jax.random.uniform(key_arms, (128, 100)), centroids, key_init)[:2]
        (repertoire, _, _), _ = jax.lax.scan(search.scan_update, (*state, key_steps), length=iterations - 1)
        fitness = repertoire.fitnesses.reshape(-1)
        return jnp.where(fitness > -jnp.inf, fitness + 1, 0).sum()

    return score(run, iterations)


def pga_me(iterations: int) -> Round:
    """PGA-MAP-Elites on walker2d, with archives of the feet contacts."""
    key = jax.random.key(0)
    env, network, evaluate = create_default_brax_task_components("walker2d_uni", key, 100, deterministic=False)
    config = PGAMEConfig(critic_hidden_layer_size=(64, 64), replay_buffer_size=100_000, batch_size=100)
    emitter = PGAMEEmitter(config, network, env, VARIATION)
    search = MAPElites(evaluate, emitter, lambda repertoire: {})

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key, 100)
        members = jax.vmap(network.init, (0, None))(keys, jnp.zeros(env.observation_size))
        return search.init(members, compute_euclidean_centroids((32, 32), 0.0, 1.0), key)[:2]

    def step(state: Any, key: jax.Array) -> tuple[Any, None]:
        return search.update(*state, key)[:2], None

    return scan_steps(step, jax.jit(init)(key), iterations, iterations)


def archive(cells: int) -> Round:
    """Adds of 1,024 solutions, whose fitness rises, so that some enter."""
    genomes, count = jax.random.normal(jax.random.key(1), (BATCH, 100)), min(100, 1_000_000 // cells)
    outside = jnp.full((BATCH, 1), -jnp.inf)
    centroids = compute_euclidean_centroids(SHAPES[cells], 0.0, 1.0)
    first = MapElitesRepertoire.init(genomes, outside, jnp.zeros((BATCH, 2)), centroids, {})

    def add(state: Any, key: jax.Array) -> tuple[Any, None]:
        repertoire, i = state
        fitness, descriptor = jax.random.normal(key, (BATCH,)) + 0.1 * i, jax.random.uniform(key, (BATCH, 2))
        return (repertoire.add(genomes, descriptor, fitness[:, None], {}), i + 1), None

    return scan_steps(add, (first, jnp.float32(0)), count, count)


if __name__ == "__main__":
    serve({"map_elites": map_elites, "pga_me": pga_me, "archive": archive}, "qdax", "brax", "jax")
