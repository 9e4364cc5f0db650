import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from evosax.algorithms import (
    PGPE,
    PSO,
    SNES,
    LearnedES,
    Open_ES,
    RandomSearch,
    SV_Open_ES,
    algorithms,
    population_based_algorithms,
)

from evorl import CEMRL, TD3, tree
from evorl.ec.evosax import Evosax
from evorl.errors import OptionError
from evorl.parts import bind
from tests.conftest import leaves_equal
from tests.tiny import ENV

MEAN = {"a": jnp.array([2.0, -1.0]), "b": jnp.array([[1.0, 0.5], [0.0, -2.0]])}


def sphere(genomes):
    return sum((x**2).sum(tuple(range(1, x.ndim))) for x in jax.tree.leaves(genomes))


def distance(params):
    return float(sphere(tree.broadcast(params, 1))[0])


def make(algorithm, n):
    """An evolver, with the options that its algorithm insists on."""
    needed = {"num_populations": 2} if "num_populations" in inspect.signature(algorithm).parameters else {}
    return Evosax(algorithm, n, needed)


def run(evolver, generations, key, failing=False):
    """The first state, the last one, and the fitness of all generations; member 1 is told to have NaN if failing."""

    def generation(state, key):
        key_ask, key_tell = jax.random.split(key)
        genomes, state = evolver.ask(key_ask, state)
        fitness = -sphere(genomes)
        assert fitness.shape == (evolver.population_size,)
        told = jnp.where(failing & (jnp.arange(fitness.size) == 1), jnp.nan, fitness)
        state, _ = evolver.tell(key_tell, genomes, told, state)
        return state, fitness

    first = jax.jit(lambda key: evolver.init(key, MEAN))(key)
    return first, *jax.lax.scan(generation, first, jax.random.split(key, generations))


@pytest.mark.program
@pytest.mark.parametrize("name", algorithms)
def test_every_algorithm_of_evosax(name, key):
    evolver = make(algorithms[name], 8)

    def two(keys, failing):
        return jax.vmap(lambda key, failing: run(evolver, 3, key, failing))(keys, failing)

    arguments = jax.random.split(key), jnp.array([False, True])
    first, last, fitness = jax.jit(two)(*arguments)
    assert jax.tree.map(jax.typeof, first) == jax.tree.map(jax.typeof, last)
    center = evolver.solution(last)
    assert jax.tree.map(jnp.shape, center) == jax.tree.map(lambda x: (2, *x.shape), MEAN)
    assert all(jnp.isfinite(x).all() for x in [fitness, *jax.tree.leaves(center)])
    assert bool(tree.is_nan_free((first, last))), "or a population counts its members as lost"


@pytest.mark.parametrize(
    "name", ["xNES", "GuidedES", "NoiseReuseES", "PersistentES", "SNES", "CMA_ES", "Open_ES", "PGPE"]
)
def test_an_algorithm_that_ignores_other_individuals_is_not_given_any(name, key):
    evolver = make(algorithms[name], 8)
    genomes, state = jax.jit(evolver.ask)(key, evolver.init(key, MEAN))
    others = jax.tree.map(lambda x: x + 0.1 * jnp.arange(8.0).reshape(8, *[1] * (x.ndim - 1)), genomes)
    tell = jax.jit(lambda genomes: evolver.solution(evolver.tell(key, genomes, jnp.arange(8.0), state)[0]))
    assert leaves_equal(tell(genomes), tell(others)) is evolver.tells_by_noise
    if evolver.tells_by_noise:
        with pytest.raises(OptionError, match="evolver=Evosax: learns from the noise that it drew"):
            CEMRL(ENV, TD3(hidden=(4,)), evolver)


@pytest.mark.parametrize("name", ["SNES", "Sep_CMA_ES", "PSO", "SimpleGA", "DifferentialEvolution"])
def test_the_center_reaches_the_optimum_of_a_sphere(name, key):
    settings = {"std": 0.1} if name == "SimpleGA" else {}
    settings |= {"initial_std": 1.0} if name in population_based_algorithms else {}
    evolver = Evosax(algorithms[name], 32, numbers=settings)
    last = jax.jit(lambda: run(evolver, 100, key)[1])()
    assert distance(evolver.solution(last)) < 0.01 * distance(MEAN)


@pytest.mark.parametrize("name", ["SNES", "CMA_ES", "PSO"])
def test_equals_evosax_itself(name, key):
    settings = {} if name == "PSO" else {"std_init": 0.3}
    evolver = Evosax(algorithms[name], 8, numbers=settings)
    own = algorithms[name](population_size=8, solution=MEAN)
    params = own.default_params.replace(**settings)
    first, last, _ = jax.jit(lambda: run(evolver, 5, key))()
    state = None if name == "PSO" else own.init(key, MEAN, params)
    for k in jax.random.split(key, 5):
        key_ask, key_tell = jax.random.split(k)
        if state is None:
            start, _ = evolver.ask(key_ask, first)
            state = own.init(key_tell, start, sphere(start), params)
            continue
        genomes, state = own.ask(key_ask, state, params)
        state, _ = own.tell(key_tell, genomes, sphere(genomes), state, params)
    center = own.get_best_solution(state) if name == "PSO" else own.get_mean(state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), evolver.solution(last), center)


def test_constructor_settings_are_numbers(key):
    evolver = Evosax(Open_ES, 32)

    @jax.jit
    @jax.vmap
    def centers(rate):
        bound = bind(evolver, {"numbers": {"learning_rate": rate, "std": jnp.float32(0.1)}})
        return evolver.solution(run(bound, 50, key)[1])

    slow, fast = (tree.index(centers(jnp.array([1e-4, 1e-1])), i) for i in range(2))
    assert distance(slow) == pytest.approx(distance(MEAN), rel=0.05)
    assert distance(fast) < 0.05 * distance(MEAN)
    direct = Open_ES(32, MEAN, optimizer=optax.adam(1e-1), std_schedule=lambda _: 0.1)
    state = direct.init(key, MEAN, direct.default_params)
    for k in jax.random.split(key, 50):
        key_ask, key_tell = jax.random.split(k)
        genomes, state = direct.ask(key_ask, state, direct.default_params)
        state, _ = direct.tell(key_tell, genomes, sphere(genomes), state, direct.default_params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), fast, direct.get_mean(state))


@pytest.mark.parametrize("algorithm", [PSO, RandomSearch])
def test_the_first_population_is_drawn_around_the_mean(algorithm, key):
    evolver = Evosax(algorithm, 1000, numbers={"initial_std": 0.5})
    genomes, _ = jax.jit(lambda: evolver.ask(key, evolver.init(key, MEAN)))()
    for x, mean in zip(jax.tree.leaves(genomes), jax.tree.leaves(MEAN), strict=True):
        np.testing.assert_allclose(x.mean(0), mean, atol=0.08)
        np.testing.assert_allclose(x.std(0), 0.5, atol=0.05)


def test_random_search_stays_around_the_mean_and_keeps_the_best(key):
    evolver = Evosax(RandomSearch, 100, numbers={"initial_std": 0.5})
    _, last, fitness = run(evolver, 20, key)
    assert distance(evolver.solution(last)) == pytest.approx(-float(fitness.max()))
    assert float(fitness[-1].mean()) == pytest.approx(-distance(MEAN) - 6 * 0.5**2, rel=0.1)


def test_fitness_that_is_not_finite_does_not_spread(key):
    evolver = Evosax(PGPE, 8)
    state = evolver.init(key, MEAN)
    genomes, state = evolver.ask(key, state)

    @jax.jit
    @jax.vmap
    def centers(fitness):
        return evolver.solution(evolver.tell(key, genomes, fitness, state)[0])

    values, lost = jnp.arange(8.0), jnp.array([jnp.nan, -jnp.inf, jnp.inf])
    counts_as = jnp.array([1.0, 1.0, 7.0])  # the worst and the best of the others
    found, expected = (jax.vmap(values.at[0].set)(first) for first in (lost, counts_as))
    jax.tree.map(np.testing.assert_allclose, centers(found), centers(expected))
    nobody = centers(jnp.full((1, 8), jnp.nan))
    jax.tree.map(np.testing.assert_array_equal, nobody, tree.broadcast(MEAN, 1))


def test_a_wrong_name_or_size_is_explained(key):
    with pytest.raises(OptionError, match="did you mean std_init"):
        Evosax(SNES, 8, numbers={"std_int": 1.0}).init(key, MEAN)
    with pytest.raises(OptionError, match="did you mean initial_std"):
        Evosax(PSO, 8, numbers={"intial_std": 1.0}).init(key, MEAN)
    with pytest.raises(OptionError, match="algorithm"):
        Evosax(int)
    with pytest.raises(OptionError, match=r"^options={}: SV_Open_ES needs options\.num_populations$"):
        Evosax(SV_Open_ES, 8)
    with pytest.raises(OptionError, match=r"did you mean options\.num_populations"):
        Evosax(SV_Open_ES, 8, {"num_population": 2})
    with pytest.raises(OptionError, match=r"unknown option of LearnedES: options\.params_path"):
        Evosax(LearnedES, 8, {"params_path": "weights.pkl"})
    with pytest.raises(OptionError, match=r"population_size=8: must be a multiple of options\.num_populations=3"):
        Evosax(SV_Open_ES, 8, {"num_populations": 3})
    with pytest.raises(OptionError, match=r"Open_ES of 7 members.*must be even"):
        Evosax(Open_ES, 7).init(key, MEAN)
