from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.ec import CMAES, DiagonalCovariance, Restarts
from evorl.errors import OptionError
from evorl.types import Evolver
from tests.conftest import leaves_equal


def rastrigin(x):
    """Without the cancellation that float32 would show."""
    return (x**2 + 20 * jnp.sin(jnp.pi * x) ** 2).sum(-1)


def best(evolver, asks, seeds=6, n=10):
    """What each seed has found, and its last state."""

    def run(key):
        def generation(i, carry):
            state, _ = carry
            genomes, state = evolver.ask(jax.random.fold_in(key, 2 * i), state)
            values = rastrigin(genomes)
            return evolver.tell(jax.random.fold_in(key, 2 * i + 1), genomes, -values, state)[0], values.min()

        carry = tree.drop_weak_types((evolver.init(key, jnp.full(n, 3.0)), jnp.float32(jnp.inf)))
        return tree.masked_fori_loop(jnp.int32(asks), generation, carry, lambda carry: carry[1] >= 1e-6)

    return jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), seeds))


@pytest.mark.program
def test_ipop_finds_the_optimum_of_rastrigin_where_one_small_population_does_not():
    _, plain = best(CMAES(10, initial_std=2.0), 1_000)
    state, found = best(Restarts(CMAES(10, initial_std=2.0)), 8_000)
    assert (np.asarray(plain) < 1e-6).sum() <= 1
    assert (np.asarray(found) < 1e-6).sum() >= 5
    assert (np.asarray(state.restarts) >= 2).all()
    np.testing.assert_array_equal(state.asks, 2 ** np.minimum(state.restarts, 5))


def told(evolver, state, key, fitness):
    genomes, state = evolver.ask(key, state)
    return evolver.tell(key, genomes, fitness, state)


@pytest.mark.program
def test_a_larger_population_is_gathered_and_moves_the_distribution_as_one(key):
    evolver = Restarts(CMAES(4), doublings=2)
    state = evolver.init(key, jnp.zeros(3)).replace(asks=jnp.int32(2))
    keys = jax.random.split(key, 2)
    asked = [evolver.ask(one, state)[0] for one in keys]
    fitness = jnp.array([[1.0, 5.0, jnp.nan, 2.0], [7.0, 0.0, 3.0, 4.0]])
    half, metrics = evolver.tell(key, asked[0], fitness[0], state)
    assert leaves_equal(half.search, state.search)
    assert float(metrics["population"]) == 8
    whole, _ = evolver.tell(key, asked[1], fitness[1], half)
    direct, _ = CMAES(8).tell(key, jnp.concatenate(asked), fitness.ravel(), state.search)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), whole.search, direct)
    assert float(whole.history[0]) == 7.0
    assert float(whole.mean_fitness) == pytest.approx(22 / 7)
    assert bool(tree.is_nan_free(half)), "or a population counts the search as lost"


@pytest.mark.program
def test_flat_fitness_starts_the_search_again_with_twice_the_population(key):
    evolver = Restarts(CMAES(6), doublings=1, spread=0.0)
    start = evolver.init(key, jnp.ones(2))
    state, tell = start, jax.jit(lambda state, key, fitness: told(evolver, state, key, jnp.full(6, fitness)))
    for i in range(20):  # 10 + 30 * 2 / 6 generations
        assert int(state.restarts) == 0
        state, metrics = tell(state, jax.random.fold_in(key, i), 0.0)
    assert float(metrics["search_restarts"]) == 1
    assert float(metrics["population"]) == 12
    assert leaves_equal(state.search, start.search)
    assert not leaves_equal(evolver.solution(state), start.initial_mean)  # of the finished run
    lucky = jnp.zeros(6).at[0].set(9.0).at[1].set(-12.0)  # the best member of all, and a mean below 0
    genomes, _ = evolver.ask(key, state)
    again, _ = evolver.tell(key, genomes, lucky, evolver.tell(key, genomes, lucky, state)[0])
    assert leaves_equal(evolver.solution(again), evolver.solution(state))
    assert not leaves_equal(again.search.mean, state.search.mean)
    state, _ = tell(*tell(state, key, 2.0)[:1], key, 2.0)
    assert leaves_equal(evolver.solution(state), state.search.mean)  # the better one


def test_a_search_is_stalled_whose_best_of_10_and_30_n_over_lambda_generations_differ_by_tol_fun(key):
    evolver = Restarts(CMAES(6), doublings=1)
    state = evolver.init(key, jnp.ones(2))
    state = replace(state, search=replace(state.search, generation=jnp.full_like(state.search.generation, 15)))
    stalled = jax.jit(lambda history: evolver._has_stalled(replace(state, history=history), jnp.int32(12), 1e-3))
    history = jnp.zeros_like(state.history)  # 10 + 30 * 2 / 12 generations count
    assert stalled(history.at[15:].set(-5.0))
    assert stalled(history.at[7].set(5e-4))
    assert not stalled(history.at[7].set(-2e-3))
    assert not stalled(history.at[14].set(2e-3))


@pytest.mark.parametrize("covariance", [CMAES(6).covariance, DiagonalCovariance()])
def test_bipops_regimes_have_equal_budgets(key, covariance):
    evolver = Restarts(CMAES(6, covariance=covariance), doublings=3, bipop=True)

    def ask_and_tell(state, key):
        state, metrics = told(evolver, state, key, jnp.zeros(6))
        return state, (metrics["population"], state.initial_sigma, state.small_regime)

    state, seen = jax.lax.scan(ask_and_tell, evolver.init(key, jnp.ones(2)), jax.random.split(key, 1500))
    population, sigma, small = map(np.asarray, seen)
    assert abs(int(state.asks_spent[0] - state.asks_spent[1])) <= 8 * 20  # one run
    assert set(population[~small]) == {6, 12, 24, 48}
    assert population[small].max() <= 24
    assert (sigma[~small] == np.float32(0.1)).all()
    assert sigma[small].min() >= 0.1 * 10**-2
    assert len(set(sigma[small])) > 5


def test_it_is_an_evolver_and_refuses_populations_beyond_reason():
    assert isinstance(Restarts(), Evolver)
    with pytest.raises(OptionError, match="doublings=-1"):
        Restarts(doublings=-1)
