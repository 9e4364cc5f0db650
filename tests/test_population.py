"""Priors, selection and variation, against numbers by hand and NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evosax.algorithms import DifferentialEvolution
from scipy import stats

from evorl.agents import PPO, TD3
from evorl.agents.random import Random
from evorl.bounds import reflect
from evorl.ec import CEM
from evorl.ec.evosax import Evosax
from evorl.errors import OptionError
from evorl.population import (
    EvolverVariation,
    Generation,
    NoSelection,
    Pairs,
    Perturb,
    PriorSpace,
    Resample,
    Swarm,
    Tournament,
    Truncation,
)
from evorl.priors import Choice, Integer, LogUniform, Neg, OneMinus, PowerOfTwo, Uniform
from evorl.workflows import CEMRL
from tests.tiny import ENV, SMALL, UPDATES

KEY = jax.random.key(0)
U = jnp.linspace(0, 1, 11)


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        (Uniform(-1.0, 3.0), np.linspace(-1, 3, 11)),
        (LogUniform(1e-5, 1e-2), stats.loguniform(1e-5, 1e-2).ppf(np.linspace(0, 1, 11))),
        (OneMinus(LogUniform(1e-3, 1e-1)), 1 - np.geomspace(1e-3, 1e-1, 11)),
        (Neg(LogUniform(1e-5, 1.0)), -np.geomspace(1e-5, 1, 11)),
        (Integer(2, 4), np.repeat([2, 3, 4], [4, 3, 4])),
        (PowerOfTwo(4, 16), np.repeat([4, 8, 16], [4, 3, 4])),
        (Choice((0.5, 8.0)), np.repeat([0.5, 8.0], [5, 6])),
    ],
    ids=lambda x: type(x).__name__,
)
def test_priors_map_the_unit_interval_and_back(prior, expected):
    numbers = prior.decode(U)
    np.testing.assert_allclose(numbers, expected, rtol=2e-4)
    assert prior.bounds == pytest.approx((min(expected), max(expected)))
    np.testing.assert_allclose(prior.decode(prior.encode(numbers)), numbers, rtol=2e-4)
    beyond = prior.encode(jnp.array([min(expected) - 100, max(expected) + 100]))
    assert np.all((np.nan_to_num(beyond) >= 0) & (np.nan_to_num(beyond) <= 1))


def test_a_space_searches_its_priors_and_keeps_its_numbers():
    agent = TD3(actor_lr=LogUniform(1e-5, 1e-3), discount=OneMinus(LogUniform(1e-3, 1e-1)), tau=1)
    workflow = CEMRL(ENV, agent, CEM(4, noise_decay=Uniform(0.9, 1.0)), **UPDATES, **SMALL)
    space = PriorSpace(workflow, search=("actor_lr",))
    assert list(space.priors) == ["agent.actor_lr", "agent.discount", "evolver.noise_decay"]
    decoded = space.decode(jnp.array([[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(decoded["agent"]["actor_lr"], [1e-5, 1e-3], rtol=1e-5)
    np.testing.assert_allclose(decoded["agent"]["discount"], [0.9, 0.999], rtol=1e-5)
    np.testing.assert_allclose(decoded["evolver"]["noise_decay"], [0.95, 0.9], rtol=1e-5)
    np.testing.assert_array_equal(decoded["agent"]["tau"], [1.0, 1.0])
    assert {leaf.dtype for leaf in jax.tree.leaves(decoded)} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PriorSpace(Random()), "Random: has nothing to search, because no hyperparameter has a prior"),
        (lambda: PriorSpace(PPO(), "clip"), "search=clip: must be a list of names"),
        (lambda: PriorSpace(PPO(), ("clipping",)), "search=clipping: must be a hyperparameter with a prior: .*clip"),
        (lambda: PriorSpace(PPO(discount=Uniform(0.5, 1.5))), r"discount=Uniform.*between 0 and 1"),
        (
            lambda: PriorSpace(PPO(discount=2.0, clip=Uniform(0, 1))),
            r"discount=2.0: must be between 0 and 1",
        ),
        (lambda: LogUniform(0.0, 1.0), "low=0.0: must be above 0"),
        (lambda: Uniform(1.0, 1.0), "high=1.0: must be above low"),
        (lambda: Choice((1.0,)), "values"),
        (lambda: Truncation(0.6), "ratio=0.6: must be above 0 and at most 0.5"),
        (lambda: Truncation(0.2).check(1), "population.size=1: must be at least 2"),
        (lambda: Tournament(3).check(3), "rivals=3: must be below"),
        (lambda: Pairs().check(5), "size=5: must be even"),
        (lambda: EvolverVariation(CEM(4)).check(6), "population_size=4: must be the size of the population, 6"),
    ],
)
def test_what_cannot_be_searched_or_selected_is_refused_in_one_line(make, message):
    with pytest.raises(OptionError, match=message):
        make()


FITNESS = jnp.array([5.0, jnp.nan, 9.0, 1.0, 7.0, -jnp.inf, 8.0, 3.0, 2.0, 6.0])


def sources(selection, fitness=FITNESS, draws=400):
    return np.asarray(jax.jit(jax.vmap(lambda key: selection(key, fitness)))(jax.random.split(KEY, draws)))


def test_truncation_replaces_the_worst_by_the_best():
    drawn = sources(Truncation(0.29), jnp.arange(100.0))
    assert all(set(row[:29]) <= set(range(71, 100)) and list(row[29:]) == list(range(29, 100)) for row in drawn)
    counts = np.bincount(drawn[:, :29].ravel(), minlength=100)[71:]
    assert stats.chisquare(counts).pvalue > 1e-3
    drawn = sources(Truncation(0.2))
    assert set(drawn[:, [1, 5]].ravel()) == {2, 6}
    often = (sources(Truncation(0.2), jnp.zeros(10), draws=4000) != np.arange(10)).mean(0)
    np.testing.assert_allclose(often, 0.2, atol=0.03)  # of equals


@pytest.mark.parametrize(("size", "replaced"), [(2, 1), (3, 1), (4, 1), (9, 1), (10, 2)])
def test_truncation_replaces_at_least_one_and_at_most_half(size, replaced):
    Truncation(0.2).check(size)
    drawn = sources(Truncation(0.2), jnp.arange(float(size)), draws=50)
    assert set(drawn[:, :replaced].ravel()) == set(range(size - replaced, size))
    assert (drawn[:, replaced:] == np.arange(replaced, size)).all()
    assert Truncation(0.5).num_replaced(size) == size // 2


def test_tournaments_and_pairs_are_won_by_the_fitter():
    order = np.where(np.isnan(FITNESS), -np.inf, FITNESS)
    for selection in (Tournament(), Tournament(3), Pairs()):
        drawn = sources(selection)
        taken = drawn != np.arange(10)
        assert np.all(order[drawn] >= order)
        assert np.all(drawn[:, 2] == 2)
        if isinstance(selection, Pairs):
            assert np.all(taken.sum(1) == 5)
            assert all(len(set(row[row != np.arange(10)])) == 5 for row in drawn)
    fitter = np.array([(order > x).sum() for x in order]) / 9
    np.testing.assert_allclose((sources(Tournament(), draws=4000) != np.arange(10)).mean(0), fitter, atol=0.03)
    assert np.all(sources(NoSelection()) == np.arange(10))


SOURCE = jnp.array([0, 1, 0, 1])
POINTS = jnp.array([[0.2, 0.5], [0.4, 0.6], [0.9, 0.1], [0.3, 0.3]])
E_FOLDS = jnp.array([np.log(1000.0), 0.0])
FIT = jnp.array([3.0, 4.0, 1.0, 2.0])
GENERATION = Generation(POINTS, FIT, SOURCE, E_FOLDS)


def test_perturbation_is_a_step_up_or_down_in_the_units_of_each_prior():
    prior = LogUniform(1e-4, 1e-1)
    move = jax.vmap(lambda key: Perturb()(key, GENERATION, None)[0])
    moved = move(jax.random.split(KEY, 400))
    np.testing.assert_array_equal(moved[:, :2], jnp.broadcast_to(POINTS[:2], (400, 2, 2)))
    factors = prior.decode(moved[:, 2:, 0]) / prior.decode(POINTS[:2, 0])
    ratios = np.float64(jnp.concatenate([factors, moved[:, 2:, 1] - POINTS[:2, 1]], axis=1)).round(3)
    down = round(1 / 1.2, 3)
    assert set(map(tuple, ratios.tolist())) == set(
        itertools.product((down, 1.2), (down, 1.2), (-0.2, 0.2), (-0.2, 0.2))
    )


@pytest.mark.parametrize("prior", [Uniform(-3, 1), LogUniform(1e-5, 1), Integer(1, 8), PowerOfTwo(16, 256)], ids=repr)
def test_perturbed_numbers_neither_drift_nor_pile_up_where_fitness_is_random(prior):
    """Points drawn uniformly stay uniform, as a symmetric walk between mirrors keeps them; also all in the middle."""
    n, e_folds = 4000, jnp.array([prior.e_folds], jnp.float32)

    @jax.jit
    def after(u):
        def generation(u, key):
            parent = jax.random.permutation(key, n)  # each as likely as another, none lost by chance
            moved, _ = Perturb()(key, Generation(u, jnp.zeros(n), parent, e_folds), None)
            return reflect(moved, 0.0, 1.0), None

        return jax.lax.scan(generation, u, jax.random.split(KEY, 50))[0]

    drawn = np.asarray(after(jax.random.uniform(KEY, (n, 1))))[:, 0]
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3
    middle = np.asarray(after(jnp.full((n, 1), 0.5)))[:, 0]
    assert abs(middle.mean() - 0.5) < 4 * middle.std() / np.sqrt(n)
    for u in (drawn, middle):
        assert np.all((u >= 0) & (u <= 1))
        assert abs((u < 0.05).mean() - (u > 0.95).mean()) < 4 * np.sqrt(0.1 / n)


def test_a_factor_of_two_is_one_power_of_two_further():
    u = jnp.array([0.3])
    prior = PowerOfTwo(16, 256)
    assert prior.decode(u + np.log(2) / prior.e_folds) == 2 * prior.decode(u)
    assert {one.e_folds for one in (Uniform(0, 2), Integer(0, 3), Choice((1.0, 2.0)), OneMinus(Uniform(0, 1)))} == {0}


def test_resampling_draws_some_numbers_anew():
    moved = jax.vmap(lambda key: Resample(rate=0.25)(key, GENERATION, None)[0])(jax.random.split(KEY, 2000))
    np.testing.assert_array_equal(moved[:, :2], jnp.broadcast_to(POINTS[:2], (2000, 2, 2)))
    anew = np.asarray(moved[:, 2:] != POINTS[:2])
    assert abs(anew.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / anew.size)
    assert stats.kstest(np.asarray(moved[:, 2:])[anew], "uniform").pvalue > 1e-3


def test_a_swarm_flies_to_its_parents_with_a_velocity_that_lasts():
    swarm = Swarm()
    velocity = jnp.array([[9.0, 9.0], [9.0, 9.0], [0.5, -0.5], [0.0, 0.0]])
    moved, after = swarm(KEY, GENERATION, velocity)
    r1, r2 = np.asarray(jax.random.uniform(KEY, (2, 4, 2)))
    assert len(np.unique(np.concatenate([r1, r2]))) == 16  # each number its own
    for child, parent in ((2, 0), (3, 1)):
        expected = r1[child] * velocity[child] + r2[child] * (POINTS[parent] - POINTS[child])
        np.testing.assert_allclose(after[child], expected, rtol=1e-6)
        np.testing.assert_allclose(moved[child], POINTS[child] + expected, rtol=1e-6)
    np.testing.assert_array_equal(after[:2], velocity[:2])
    np.testing.assert_array_equal(moved[:2], POINTS[:2])
    np.testing.assert_array_equal(swarm.init(KEY, POINTS), jnp.zeros_like(POINTS))


@pytest.mark.program
@pytest.mark.parametrize(
    "evolver", [Evosax(DifferentialEvolution, 20), CEM(20, initial_variance=0.1)], ids=["evosax", "cem"]
)
def test_evolved_children_find_the_best_settings(evolver):
    """The population's points approach where the fitness is highest, with the children's moves alone."""
    variation, selection = EvolverVariation(evolver), Truncation(0.5)
    best = jnp.array([0.7, 0.2])
    points = jax.random.uniform(KEY, (20, 2))
    fitness_of = lambda points: -((points - best) ** 2).sum(-1)  # noqa: E731
    memory = variation.init(KEY, points)
    before = fitness_of(points).mean()

    @jax.jit
    def generation(carry, key):
        points, memory = carry
        fitness = fitness_of(points)
        told = Generation(points, fitness, selection(key, fitness), jnp.zeros(2))
        points, memory = variation(key, told, memory)
        return (points, memory), None

    (points, _), _ = jax.lax.scan(generation, (points, memory), jax.random.split(KEY, 60))
    assert fitness_of(points).mean() > 0.1 * before
    assert jnp.abs(points.mean(0) - best).max() < 0.1
