"""Evolution strategies with evorl."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from es_functions import (
    GENERATIONS,
    LEARNING_RATE,
    MEMBERS,
    SIGMA,
    START,
    STD,
    STEPS,
    TARGET,
    count_members,
    limit_evaluations,
    rosenbrock,
    sphere,
)
from jax_rounds import scan_steps
from side import Round, serve

from evorl import Evolution, Gymnax, MLPPolicy
from evorl.ec import CMAES, OpenES
from evorl.parts import bind, resolve_numbers


def openes(size: int) -> Round:
    return iterate(OpenES(MEMBERS, learning_rate=LEARNING_RATE, std=STD), size, STEPS[size])


def cma_es(size: int) -> Round:
    return iterate(CMAES(count_members(size), initial_std=SIGMA), size, GENERATIONS[size])


def iterate(evolver: Any, size: int, count: int) -> Round:
    """Return rounds of generations on the sphere."""

    def generation(state: Any, key: Any) -> Any:
        key_ask, key_tell = jax.random.split(key)
        genomes, state = evolver.ask(key_ask, state)
        return evolver.tell(key_tell, genomes, -sphere(genomes), state)

    return scan_steps(generation, jax.jit(evolver.init)(jax.random.key(0), jnp.ones(size)), count, count)


def cma_es_to_target(size: int) -> Round:
    """One seed of Rosenbrock's function until a value below TARGET."""
    evolver = bind(CMAES(count_members(size)), resolve_numbers(CMAES(count_members(size)), {"initial_std": SIGMA}))

    def is_open(carry: Any) -> Any:
        return (carry[2] >= TARGET) & (carry[1] < limit_evaluations(size))

    @jax.jit
    def search(key: Any) -> Any:
        def generation(carry: Any) -> Any:
            state, taken, _ = carry
            key_ask, key_tell = jax.random.split(jax.random.fold_in(key, taken))
            genomes, state = evolver.ask(key_ask, state)
            values = rosenbrock(genomes)
            state, _ = evolver.tell(key_tell, genomes, -values, state)
            return state, taken + evolver.population_size, values.min()

        first = evolver.init(key, jnp.full(size, START)), jnp.int32(0), jnp.float32(jnp.inf)
        return jax.lax.while_loop(is_open, generation, first)[1:]

    def one(i: int) -> dict[str, float]:
        taken, best = search(jax.random.key(i))
        return {"work": int(taken), "score": float(best)}

    return one


def cartpole(size: int, at_once: int = 0) -> Round:
    """Generations of OpenES on CartPole; an individual plays one episode."""
    workflow = Evolution(
        Gymnax("CartPole-v1"),
        MLPPolicy(hidden=(64, 64), activation="tanh"),
        OpenES(size),
        normalization="none",
        members_at_once=min(at_once, size),
    )
    return scan_steps(workflow.step, jax.jit(workflow.init)(jax.random.key(0)), 5, 5)


if __name__ == "__main__":
    makers = {"openes": openes, "cma_es": cma_es, "cma_es_to_target": cma_es_to_target}
    makers |= {"cartpole": cartpole, "cartpole_512": partial(cartpole, at_once=512)}
    serve(makers, "jax")
