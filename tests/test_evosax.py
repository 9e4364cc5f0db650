import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from evosax.algorithms import CMA_ES, PGPE, SNES, Open_ES, distribution_based_algorithms

from evorl import tree
from evorl.ec.evosax import Evosax
from evorl.errors import OptionError

MEAN = {"a": jnp.array([2.0, -1.0]), "b": jnp.array([[1.0, 0.5], [0.0, -2.0]])}
NEED_OPTIONS = {"RandomSearch", "SV_CMA_ES", "SV_Open_ES"}  # evosax itself needs more to construct or initialize these


def sphere(genomes):
    return sum((x**2).sum(tuple(range(1, x.ndim))) for x in jax.tree.leaves(genomes))


def run(evolver, hyperparams, generations, key):
    def generation(state, key):
        key_ask, key_tell = jax.random.split(key)
        genomes, state = evolver.ask(key_ask, state, hyperparams)
        state, _ = evolver.tell(key_tell, genomes, -sphere(genomes), state, hyperparams)
        return state, None

    return jax.lax.scan(generation, evolver.init(key, MEAN, hyperparams), jax.random.split(key, generations))[0]


@pytest.mark.parametrize("name", ["SNES", "Sep_CMA_ES", "CMA_ES"])
def test_equals_evosax_itself(name, key):
    algorithm = distribution_based_algorithms[name]
    own = algorithm(population_size=8, solution=MEAN)
    params = own.default_params.replace(std_init=0.3)
    state = own.init(key, MEAN, params)
    for k in jax.random.split(key, 5):
        key_ask, key_tell = jax.random.split(k)
        genomes, state = own.ask(key_ask, state, params)
        state, _ = own.tell(key_tell, genomes, sphere(genomes), state, params)
    evolver = Evosax(algorithm, 8)
    ours = evolver.center(run(evolver, {"std_init": jnp.float32(0.3)}, 5, key))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, own.get_mean(state))


@pytest.mark.parametrize("name", sorted(set(distribution_based_algorithms) - NEED_OPTIONS))
def test_every_algorithm_keeps_its_types_in_a_loop(name, key):
    evolver = Evosax(distribution_based_algorithms[name], 8)
    state = jax.eval_shape(lambda: run(evolver, {}, 2, key))
    assert tree.nbytes(evolver.center(state)) == tree.nbytes(MEAN)


def test_constructor_settings_are_hyperparameters(key):
    evolver = Evosax(Open_ES, 32)
    slow = run(evolver, {"learning_rate": jnp.float32(1e-4), "std": jnp.float32(0.1)}, 50, key)
    fast = run(evolver, {"learning_rate": jnp.float32(1e-1), "std": jnp.float32(0.1)}, 50, key)
    one = jax.tree.map(lambda x: x[None], MEAN)
    start = float(sphere(one)[0])
    moved = [float(sphere(jax.tree.map(lambda x: x[None], evolver.center(state)))[0]) for state in (slow, fast)]
    assert moved[0] == pytest.approx(start, rel=0.05)
    assert moved[1] < 0.05 * start
    direct = Open_ES(32, MEAN, optimizer=optax.adam(1e-1), std_schedule=lambda _: 0.1)
    state = direct.init(key, MEAN, direct.default_params)
    for k in jax.random.split(key, 50):
        key_ask, key_tell = jax.random.split(k)
        genomes, state = direct.ask(key_ask, state, direct.default_params)
        state, _ = direct.tell(key_tell, genomes, sphere(genomes), state, direct.default_params)
    ours = evolver.center(fast)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), ours, direct.get_mean(state))


def test_nan_fitness_does_not_spread(key):
    evolver = Evosax(PGPE, 8)
    state = evolver.init(key, MEAN, {})
    genomes, state = evolver.ask(key, state, {})
    state, _ = evolver.tell(key, genomes, jnp.arange(8.0).at[3].set(jnp.nan), state, {})
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(evolver.center(state)))


def test_a_wrong_hyperparameter_names_the_nearest(key):
    with pytest.raises(OptionError, match="did you mean std_init"):
        Evosax(SNES, 8).init(key, MEAN, {"std_int": 1.0})
    with pytest.raises(OptionError, match="algorithm"):
        Evosax(CMA_ES(8, MEAN))  # pyright: ignore[reportArgumentType]
