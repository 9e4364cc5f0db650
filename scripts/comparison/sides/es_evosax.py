"""Evolution strategies with evosax."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
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
from evosax.algorithms import CMA_ES, Open_ES, xNES
from evosax.problems import BBOBProblem, bbob_fns
from jax_rounds import scan_steps
from side import Round, serve


def openes(size: int) -> Round:
    return iterate(make_openes(MEMBERS, jnp.zeros(size)), None, size, STEPS[size])


def make_openes(members: int, solution: Any) -> Any:
    adam, std = optax.adam(LEARNING_RATE), optax.constant_schedule(STD)
    return Open_ES(population_size=members, solution=solution, optimizer=adam, std_schedule=std)


def cma_es(size: int) -> Round:
    return iterate(*make_cma_es(size, SIGMA), size, GENERATIONS[size])


def xnes(size: int) -> Round:
    return iterate(*make_xnes(size, SIGMA), size, GENERATIONS[size])


def iterate(searcher: Any, params: Any, size: int, count: int) -> Round:
    """Return rounds of generations on the sphere."""
    params = searcher.default_params if params is None else params

    def generation(state: Any, key: Any) -> Any:
        key_ask, key_tell = jax.random.split(key)
        population, state = searcher.ask(key_ask, state, params)
        return searcher.tell(key_tell, population, sphere(population), state, params)

    return scan_steps(generation, first_state(searcher, jnp.ones(size), params), count, count)


def first_state(searcher: Any, mean: Any, params: Any, key: Any = None) -> Any:
    """Return an initial state with the types that a generation returns."""
    state = searcher.init(jax.random.key(0) if key is None else key, mean, params)
    asked = jax.eval_shape(lambda state: searcher.ask(jax.random.key(0), state, params)[1], state)
    return jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), state, asked)


def search_until(target: float, evaluate: Any, size: int, searcher: Any, params: Any) -> Any:
    """Return a program that searches until a value is below a target."""

    def generation(key: Any, state: Any) -> Any:
        key_ask, key_tell = jax.random.split(key)
        population, state = searcher.ask(key_ask, state, params)
        values = evaluate(population)
        return searcher.tell(key_tell, population, values, state, params)[0], values

    return search(lambda key, start: first_state(searcher, start, params, key), generation, size, target)


def make_cma_es(size: int, sigma: float) -> tuple[Any, Any]:
    searcher = CMA_ES(population_size=count_members(size), solution=jnp.zeros(size))
    return searcher, searcher.default_params.replace(std_init=sigma)


def make_xnes(size: int, sigma: float) -> tuple[Any, Any]:
    """Return xNES, and params for a standard deviation at the start, which is the square of evosax's `std_init`."""
    searcher = xNES(population_size=count_members(size), solution=jnp.zeros(size))
    return searcher, searcher.default_params.replace(std_init=sigma**0.5)


def cma_es_to_target(size: int) -> Round:
    """One seed of Rosenbrock's function until a value below TARGET."""
    return search_one(search_until(TARGET, rosenbrock, size, *make_cma_es(size, SIGMA)), size)


def bbob(make_searcher: Any, size: int) -> Round:
    """One seed of all functions of BBOB; the score is the number of functions with a value below BBOB_TARGET."""

    def make(name: str) -> Any:
        problem = BBOBProblem(name, size, f_opt=0.0, seed=0)
        evaluate = lambda population: problem.eval(jax.random.key(0), population, problem._state)[0]  # noqa: E731
        return search_until(BBOB_TARGET, evaluate, size, *make_searcher(size, BBOB_SIGMA))

    return search_all([make(name) for name in bbob_fns], size)


def cartpole(size: int) -> Round:
    """Generations of OpenES on CartPole; an individual plays one episode."""
    from evosax.problems import GymnaxProblem
    from evosax.problems.networks import MLP, categorical_output_fn

    policy = MLP(layer_sizes=(64, 64, 2), activation=jnp.tanh, output_fn=categorical_output_fn)
    problem = GymnaxProblem("CartPole-v1", policy, use_normalize_obs=False)
    solution = problem.sample(jax.random.key(0))
    searcher, state = make_openes(size, solution), problem.init(jax.random.key(0))
    params = searcher.default_params

    def generation(carry: Any, key: Any) -> Any:
        state, evaluating = carry
        key_ask, key_eval, key_tell = jax.random.split(key, 3)
        population, state = searcher.ask(key_ask, state, params)
        fitness, evaluating, _ = problem.eval(key_eval, population, evaluating)
        state, _ = searcher.tell(key_tell, population, -fitness, state, params)
        return (state, evaluating), None

    first = first_state(searcher, solution, params), state
    typed = jax.eval_shape(lambda carry: generation(carry, jax.random.key(0))[0], first)
    return scan_steps(generation, jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), first, typed), 5, 5)


if __name__ == "__main__":
    makers = {"openes": openes, "cma_es": cma_es, "xnes": xnes, "cma_es_to_target": cma_es_to_target}
    makers |= {"bbob": partial(bbob, make_cma_es), "bbob_xnes": partial(bbob, make_xnes), "cartpole": cartpole}
    serve(makers, "evosax", "jax")
