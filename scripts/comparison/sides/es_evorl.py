"""Evolution strategies with evorl."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from es_functions import (
    BBOB_SIGMA,
    BBOB_TARGET,
    GENERATIONS,
    LEARNING_RATE,
    MEMBERS,
    SIGMA,
    STD,
    STEPS,
    TARGET,
    count_members,
    rosenbrock,
    sphere,
)
from es_rounds import search, search_all, search_one
from evosax.problems import bbob_fns
from jax_rounds import scan_steps
from side import Round, serve

from evorl import Evolution, Gymnax, MLPPolicy
from evorl.ec import CMAES, XNES, OpenES
from evorl.parts import bind, resolve_numbers
from evorl.problems import BBOB


def openes(size: int) -> Round:
    return iterate(OpenES(MEMBERS, learning_rate=LEARNING_RATE, std=STD), size, STEPS[size])


def cma_es(size: int) -> Round:
    return iterate(CMAES(count_members(size), initial_std=SIGMA), size, GENERATIONS[size])


def xnes(size: int) -> Round:
    return iterate(XNES(count_members(size), initial_std=SIGMA), size, GENERATIONS[size])


def iterate(evolver: Any, size: int, count: int) -> Round:
    """Return rounds of generations on the sphere."""

    def generation(state: Any, key: Any) -> Any:
        key_ask, key_tell = jax.random.split(key)
        genomes, state = evolver.ask(key_ask, state)
        return evolver.tell(key_tell, genomes, -sphere(genomes), state)

    return scan_steps(generation, jax.jit(evolver.init)(jax.random.key(0), jnp.ones(size)), count, count)


def search_until(kind: Any, target: float, evaluate: Any, size: int, sigma: float) -> Any:
    """Return a program that searches until a value is below a target."""
    evolver = bind(kind(count_members(size)), resolve_numbers(kind(count_members(size)), {"initial_std": sigma}))

    def generation(key: Any, state: Any) -> Any:
        key_ask, key_tell = jax.random.split(key)
        genomes, state = evolver.ask(key_ask, state)
        values = evaluate(genomes)
        return evolver.tell(key_tell, genomes, -values, state)[0], values

    return search(evolver.init, generation, size, target)


def cma_es_to_target(size: int) -> Round:
    """One seed of Rosenbrock's function until a value below TARGET."""
    return search_one(search_until(CMAES, TARGET, rosenbrock, size, SIGMA), size)


def bbob(kind: Any, size: int) -> Round:
    """One seed of all functions of BBOB; the score is the number of functions with a value below BBOB_TARGET."""

    def make(name: str) -> Any:
        evaluate = jax.vmap(partial(BBOB(name, size).evaluate, jax.random.key(0)))
        return search_until(kind, BBOB_TARGET, lambda genomes: -evaluate(genomes), size, BBOB_SIGMA)

    return search_all([make(name) for name in bbob_fns], size)


def make_cartpole(size: int) -> Evolution:
    return Evolution(
        Gymnax("CartPole-v1"),
        MLPPolicy(hidden=(64, 64), activation="tanh"),
        OpenES(size),
        normalization="none",
    )


def cartpole(size: int) -> Round:
    """Generations of OpenES on CartPole; an individual plays one episode."""
    workflow = make_cartpole(size)
    return scan_steps(workflow.step, jax.jit(workflow.init)(jax.random.key(0)), 5, 5)


if __name__ == "__main__":
    makers = {"openes": openes, "cma_es": cma_es, "xnes": xnes, "cma_es_to_target": cma_es_to_target}
    makers |= {"bbob": partial(bbob, CMAES), "bbob_xnes": partial(bbob, XNES), "cartpole": cartpole}
    serve(makers, "jax")
