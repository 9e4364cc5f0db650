"""Compare evorl's evolution strategies with evosax's (J5): ask, a sphere, and tell, in a scan."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from evosax.algorithms import PGPE, Open_ES, Sep_CMA_ES
from peers_timing import Case, Program, compare

from evorl.ec import Noise, OpenES

KEY = jax.random.key(0)
MEMBERS = 128
SIZES = {1_000: 200, 10_000: 40, 70_000: 10}  # parameters: generations
LEARNING_RATE, STD = 0.01, 0.02


def ours(noise: Noise, size: int, generations: int) -> Program:
    evolver = OpenES(MEMBERS, noise=noise, learning_rate=LEARNING_RATE, std=STD)

    def generation(state: Any, key: Any) -> Any:
        key_ask, key_tell = jax.random.split(key)
        genomes, state = evolver.ask(key_ask, state)
        fitness = -(genomes**2).sum(1)
        return evolver.tell(key_tell, genomes, fitness, state)[0], fitness.max()

    return scanned(generation, jax.jit(evolver.init)(KEY, jnp.ones(size)), generations)


def evosax(algorithm: Any, size: int, generations: int, **options: Any) -> Program:
    searcher = algorithm(population_size=MEMBERS, solution=jnp.zeros(size), **options)
    params = searcher.default_params

    def generation(state: Any, key: Any) -> Any:
        key_ask, key_tell = jax.random.split(key)
        population, state = searcher.ask(key_ask, state, params)
        fitness = (population**2).sum(1)
        return searcher.tell(key_tell, population, fitness, state, params)[0], fitness.min()

    state = searcher.init(KEY, jnp.ones(size), params)
    asked = searcher.ask(KEY, state, params)[1]
    state = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), state, asked)
    return scanned(generation, state, generations)


def scanned(generation: Any, state: Any, generations: int) -> Program:
    def run(state: Any) -> Any:
        return jax.lax.scan(generation, state, jax.random.split(KEY, generations))[0]

    return Program(run, (state,), generations, restart=lambda state: state)


def searches() -> Iterator[Case]:
    adam, std = optax.adam(LEARNING_RATE), optax.constant_schedule(STD)
    for size, generations in SIZES.items():
        noises = [Noise("table"), Noise("hash"), Noise("exact")]
        yield (
            f"{size} parameters",
            {
                **{f"evorl OpenES, {noise.source}": ours(noise, size, generations) for noise in noises},
                "evosax Open_ES": evosax(Open_ES, size, generations, optimizer=adam, std_schedule=std),
                "evosax PGPE": evosax(PGPE, size, generations, optimizer=adam),
                "evosax Sep_CMA_ES": evosax(Sep_CMA_ES, size, generations),
            },
        )


def j5(repeats: int) -> dict[str, Any]:
    """Compare the microseconds of a generation of 128 members; evorl runs with its three noises, the fastest first."""
    return compare("J5", searches(), "us", repeats)
