"""Fronts, crowding, hypervolume, directions and bounded operators, against brute force, numbers by hand and pymoo."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evorl.ec import NSGA2, RVEA, objectives
from evorl.ec.nsga2 import select_winners
from evorl.ec.rvea import build_simplex_lattice, select_by_direction
from evorl.ec.variation import (
    SBX,
    BoundedSBX,
    NPointCrossover,
    PolynomialMutation,
    create_paired_offspring,
)
from evorl.errors import OptionError
from evorl.problems import DTLZ, ZDT
from evorl.workflows import Search

WITH_TIES = [(1, 1), (90, 1), (33, 2), (64, 2), (70, 3), (40, 5)]


def brute_force(fitness):
    """Front by front: who is dominated by nobody that is left."""
    left, rank, front = set(range(len(fitness))), np.zeros(len(fitness), int), 0
    while left:
        free = [
            i
            for i in left
            if not any((fitness[j] >= fitness[i]).all() and (fitness[j] > fitness[i]).any() for j in left)
        ]
        rank[free], front, left = front, front + 1, left - set(free)
    return rank


@pytest.mark.parametrize(("n", "m"), WITH_TIES)
def test_ranks_are_those_of_brute_force_with_ties(n, m):
    fitness = np.random.default_rng(n).integers(0, 5, (n, m)).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(objectives.compute_pareto_ranks)(fitness), brute_force(fitness))


@pytest.mark.parametrize("m", [1, 2])
def test_ranking_stops_where_enough_are_ranked_and_for_many_at_once(m):
    fitness = np.random.default_rng(0).normal(size=(3, 40, m)).astype(np.float32).round(1)
    some = np.asarray(jax.vmap(lambda f: objectives.compute_pareto_ranks(f, 20))(fitness))
    for rank, one in zip(some, fitness, strict=True):
        expected = brute_force(one)
        needed = expected <= np.sort(expected)[19]
        np.testing.assert_array_equal(rank[needed], expected[needed])
        assert (rank[~needed] > expected[needed].max()).all()


def test_what_is_not_finite_is_worse_than_anything():
    fitness = jnp.array([[jnp.nan, 9.0], [-5.0, -jnp.inf], [0.0, 0.0], [jnp.inf, 1.0], [-9.0, -9.0]])
    np.testing.assert_array_equal(objectives.compute_pareto_ranks(fitness), [2, 2, 0, 2, 1])


def test_crowding_is_that_of_a_front_by_hand():
    """(0, 4), (1, 3), (3, 1), (4, 0) in one front, widths 4 and 4; one more behind them, alone."""
    fitness = jnp.array([[1.0, 3.0], [0.0, 4.0], [4.0, 0.0], [-1.0, -1.0], [3.0, 1.0]])
    rank = objectives.compute_pareto_ranks(fitness)
    np.testing.assert_array_equal(rank, [0, 0, 0, 1, 0])
    expected = [3 / 4 + 3 / 4, np.inf, np.inf, np.inf, 3 / 4 + 3 / 4]
    np.testing.assert_allclose(objectives.crowding_distance(fitness, rank), expected)


def test_crowding_is_pymoos():
    metrics = pytest.importorskip("pymoo.operators.survival.rank_and_crowding.metrics")
    fitness = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
    rank = np.asarray(objectives.compute_pareto_ranks(jnp.asarray(fitness)))
    found = np.asarray(objectives.crowding_distance(jnp.asarray(fitness), jnp.asarray(rank)))
    for front in range(rank.max() + 1):
        expected = 3 * metrics.calc_crowding_distance(-fitness[rank == front].astype(float))
        np.testing.assert_allclose(found[rank == front], expected, rtol=1e-4)


@pytest.mark.program
def test_hypervolume_by_hand():
    """Above (0, 0): 1 x 3 + 1 x 2 + 1 x 1; a box, and two that share a unit cube."""
    steps = jnp.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0], [1.0, 1.0], [9.0, -1.0], [jnp.nan, 5.0]])
    assert objectives.hypervolume(steps, jnp.zeros(2)) == 6
    assert objectives.hypervolume(jnp.array([[2.0, 3.0, 4.0]]), jnp.zeros(3)) == 24
    assert objectives.hypervolume(jnp.array([[2.0, 1.0, 1.0], [1.0, 1.0, 3.0]]), jnp.zeros(3)) == 4
    assert objectives.hypervolume(steps, jnp.full(2, 10.0)) == 0
    with pytest.raises(OptionError, match="hypervolume=4 objectives: is supported for 2 or 3"):
        objectives.hypervolume(jnp.zeros((1, 4)), jnp.zeros(4))


@pytest.mark.parametrize("m", [2, 3])
def test_hypervolume_is_pymoos(m):
    hv = pytest.importorskip("pymoo.indicators.hv")
    fitness = np.random.default_rng(m).normal(size=(50, m)).astype(np.float32)
    expected = hv.HV(ref_point=np.full(m, 0.5))(-fitness.astype(float))
    np.testing.assert_allclose(objectives.hypervolume(jnp.asarray(fitness), jnp.full(m, -0.5)), expected, rtol=1e-4)


def test_objectives_are_columns_of_what_episodes_are_known_by():
    means = {"return": jnp.arange(3.0), "place": jnp.arange(6.0).reshape(3, 2), "energy": jnp.ones(3)}
    told = objectives.compute_objectives({"return": 1, "energy": -0.5, "place/1": 2}, means)
    np.testing.assert_array_equal(told, [[0, -0.5, 2], [1, -0.5, 6], [2, -0.5, 10]])
    np.testing.assert_array_equal(objectives.compute_objectives({}, means), [[0], [1], [2]])
    with pytest.raises(OptionError, match=r"unknown objective enregy; did you mean energy\?"):
        objectives.compute_objectives({"enregy": 1}, means)
    with pytest.raises(OptionError, match=r"objectives.return=0: must be a number, below 0 to minimize"):
        NSGA2(4, {"return": 0})


OPERATORS = {
    "crossover": (BoundedSBX(15.0, 0.5, (0.0, -1.0), (1.0, 3.0)), 20_000),
    "mutation": (PolynomialMutation((0.0, -1.0), (1.0, 3.0)), 20_000),
}


def operate(name, first, second, n):
    """n children of a pair, or of its first; the mutation of every variable."""
    operator, key = OPERATORS[name][0], jax.random.key(1)
    first, second = (jnp.broadcast_to(jnp.array(x), (n, 2)) for x in (first, second))
    if name == "crossover":
        return np.asarray(operator(key, first, second))
    return np.asarray(dataclasses.replace(operator, eta=5.0, rate=2.0)(key, first, np.arange(2)))


@pytest.mark.parametrize("name", OPERATORS)
def test_bounded_operators_stay_in_bounds(name):
    for first, second in itertools.product([(0.0, -1.0), (0.01, 2.99), (1.0, 3.0)], repeat=2):
        children = operate(name, first, second, 500)
        assert (children >= [0, -1]).all()
        assert (children <= [1, 3]).all()
        assert np.isfinite(children).all()


@pytest.mark.parametrize("name", OPERATORS)
def test_bounded_operators_have_pymoos_distribution(name):
    n, rng = 20_000, np.random.default_rng(2)
    first, second = (0.05, 2.0), (0.3, -0.9)
    low, high = np.array([0.0, -1.0]), np.array([1.0, 3.0])
    if name == "crossover":
        sbx = pytest.importorskip("pymoo.operators.crossover.sbx")
        both = np.broadcast_to(np.array([first, second])[:, None], (2, n, 2)).copy()
        eta, half = np.full((n, 1), 15.0), np.full((n, 1), 0.5)
        expected = sbx.cross_sbx(both, low, high, eta, 0.5, half, random_state=rng)[0]
        unchanged = 0.5
    else:
        pm = pytest.importorskip("pymoo.operators.mutation.pm")
        rows = np.broadcast_to(np.array(first), (n, 2)).copy()
        expected = pm.mut_pm(rows, low, high, np.full(n, 5.0), np.ones(n), False, random_state=rng)
        unchanged = 0.0
    found = operate(name, first, second, n)
    for i in range(2):
        changed, theirs = found[:, i] != np.float32(first[i]), expected[:, i] != first[i]
        assert changed.mean() == pytest.approx(1 - unchanged, abs=0.02)
        assert theirs.mean() == pytest.approx(1 - unchanged, abs=0.02)
        assert stats.ks_2samp(found[changed, i], expected[theirs, i]).pvalue > 1e-3


def test_without_bounds_crossover_is_sbx_and_mutation_has_a_width():
    """Spreads of SBX are above 1 half of the time; a mutation is 1 - (1 - u)^(1 / (eta + 1)) of the width."""
    n, key = 20_000, jax.random.key(0)
    first, second = jnp.full((n, 1), -1.0), jnp.full((n, 1), 1.0)
    spread = np.abs(np.asarray(BoundedSBX(2.0, 1.0)(key, first, second)))
    assert (spread > 1).mean() == pytest.approx(0.5, abs=0.02)
    assert np.median(spread**3) == pytest.approx(1, abs=0.05)  # u <= 1/2: spread^3 = 2 u (Deb & Agrawal 1995)
    mutated = PolynomialMutation(eta=5.0, rate=1.0, width=0.1)(key, first, np.zeros(1, int))
    changes = np.abs(np.asarray(mutated) + 1)
    assert changes.max() < 0.1
    assert np.median(changes) == pytest.approx(0.1 * (1 - 0.5 ** (1 / 6)), rel=0.05)


@pytest.mark.program
def test_nsga2_comes_near_the_front_of_zdt1():
    """pymoo 0.6.2's reaches 0.855 to 0.859 with this budget, seeds 1 to 3; the true front has 0.8767."""
    workflow = Search(ZDT(1, 10), NSGA2(40))

    def searched(key):
        state = workflow.init(key)
        return jax.lax.scan(workflow.step, state, jax.random.split(key, 100))[0]

    state = jax.jit(searched)(jax.random.key(0))
    found = workflow.evolver_with_bounds.results(state.evolver)
    assert bool(found.valid_mask.all())
    volume = objectives.hypervolume(found.fitness, jnp.full(2, -1.1))
    assert 0.84 < float(volume) < 0.8767
    best = workflow.evolver_with_bounds.solution(state.evolver)
    np.testing.assert_array_equal(best, found.params[found.fitness[:, 0].argmax()])


@pytest.mark.program
def test_members_that_nobody_evaluated_are_in_no_front():
    evolver, mean = NSGA2(4, {"return/0": 1, "return/1": 1}), jnp.zeros(3)
    state = dataclasses.replace(evolver, initial_std=1.0).init(jax.random.key(0), mean)
    assert not evolver.results(state).valid_mask.any()
    fitness = jnp.array([[0.0, 1.0], [1.0, 0.0], [jnp.nan, 5.0], [-1.0, -1.0]])
    state, metrics = evolver.tell(jax.random.key(1), state.children, fitness, state)
    found = evolver.results(state)
    assert metrics["front"] == found.valid_mask.sum() == 2
    assert sorted(map(tuple, np.asarray(found.fitness)[np.asarray(found.valid_mask)])) == [(0, 1), (1, 0)]


def test_a_lattice_has_every_point_that_sums_up():
    points = {(0, 0, 2), (0, 1, 1), (0, 2, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0)}
    assert set(map(tuple, build_simplex_lattice(3, 2))) == points
    three = {f"return/{i}": 1 for i in range(3)}
    assert RVEA(105, objectives=three).lattice_directions.shape == (105, 3)  # of 13 divisions; 120 would be of 14
    assert RVEA(119, objectives=three).lattice_directions.shape == (105, 3)
    np.testing.assert_allclose(RVEA(3, objectives=three).lattice_directions, np.eye(3)[::-1])
    with pytest.raises(OptionError, match=r"objectives=\{\}: must be at least two"):
        RVEA().init(jax.random.key(0), jnp.zeros(2))


def test_who_stays_is_who_the_paper_says():
    """Equations 6 to 10 as loops, in NumPy; one is not there, one has no direction's best."""
    rng = np.random.default_rng(3)
    fitness = rng.normal(size=(30, 3)).astype(np.float32)
    directions = RVEA(15, objectives={"a": 1, "b": 1, "c": 1}).lattice_directions
    fitness[4] = np.nan
    cost = np.nanmax(fitness, 0) - fitness
    length = np.linalg.norm(cost, axis=1)
    angles = np.arccos(np.clip(cost @ directions.T / length[:, None], -1, 1))
    between = np.arccos(np.clip(directions @ directions.T, -1, 1)) + 9 * np.eye(len(directions))
    expected = {}
    for i in range(len(fitness)):
        if i != 4:
            j = angles[i].argmin()
            distance = length[i] * (1 + 0.7 * angles[i, j] / between[j].min())
            expected[j] = min(expected.get(j, (np.inf, -1)), (distance, i))
    chosen, there = select_by_direction(
        objectives.sanitize_objectives(jnp.asarray(fitness)), jnp.asarray(directions), jnp.float32(0.7)
    )
    found = {int(j): int(chosen[j]) for j in np.flatnonzero(there)}
    assert found == {j: i for j, (_, i) in expected.items()}


@pytest.mark.program
def test_rvea_comes_near_the_front_of_dtlz2_along_scaled_directions():
    """pymoo 0.6.2's reaches 0.691 to 0.695 in as many generations, of eight seeds; the true front has 0.8074."""
    workflow = Search(DTLZ(2, 3, 5), RVEA(36, 60))

    def searched(key):
        state = workflow.init(key)
        return jax.lax.scan(workflow.step, state, jax.random.split(key, 60))

    state, metrics = jax.jit(searched)(jax.random.key(0))
    found = workflow.evolver_with_bounds.results(state.evolver)
    fitness = jnp.where(found.valid_mask[:, None], found.fitness, -9.0)
    assert 0.67 < float(objectives.hypervolume(fitness, jnp.full(3, -1.1))) < 0.8074
    assert metrics["front"][-1] == found.valid_mask.sum() > 30
    np.testing.assert_allclose(jnp.linalg.norm(state.evolver.directions, axis=1), 1, rtol=1e-5)
    told = np.asarray(state.evolver.fitness)
    expected = workflow.evolver_with_bounds.lattice_directions * np.ptp(
        told[told[:, 0] > objectives.WORST_FITNESS], axis=0
    )
    np.testing.assert_allclose(
        state.evolver.directions, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5
    )


@pytest.mark.parametrize("crossover", [BoundedSBX(), SBX(), NPointCrossover(2)], ids=repr)
def test_twins_have_between_them_what_their_parents_have(crossover):
    """Without bounds both children of SBX lie around the middle of their parents (Deb & Agrawal 1995, equation 3)."""
    keys, parents = tuple(jax.random.split(jax.random.key(5), 3)), jax.random.normal(jax.random.key(6), (8, 5))

    @jax.jit
    def of_rates(crossover_rate, mutation_rate):
        evolver = NSGA2(8, crossover=crossover, crossover_rate=crossover_rate, mutation_rate=mutation_rate)
        return create_paired_offspring(keys, parents, evolver, np.zeros(5, int))

    crossed = of_rates(1.0, 0.0)
    np.testing.assert_allclose(crossed[:4] + crossed[4:], parents[:4] + parents[4:], rtol=1e-5, atol=1e-5)
    copies = of_rates(0.0, 0.0)
    np.testing.assert_array_equal(copies, crossed)  # nobody is its parent again
    mutated = of_rates(0.0, 1.0)
    some = (mutated != crossed).any(1)
    assert some.any()
    assert np.abs(mutated - parents)[some].max() < 1
    assert (mutated != parents).any(1).all()


def test_everyone_is_in_two_tournaments_which_the_better_wins():
    """Of four in a row the best wins both of its own, the worst none."""
    fitness = jnp.stack([jnp.arange(4.0)] * 2, 1)
    of_key = jax.jit(jax.vmap(lambda key: select_winners(key, fitness, jnp.zeros(4))))
    won = np.stack([np.bincount(row, minlength=4) for row in of_key(jax.random.split(jax.random.key(0), 50))])
    assert (won.sum(1) == 4).all()
    assert (won[:, 3] == 2).all()
    assert (won[:, 0] == 0).all()
    assert 0 < won[:, 1].mean() < won[:, 2].mean() < 2
    equal = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_array_equal(
        select_winners(jax.random.key(0), equal, jnp.array([1.0, 2.0])), [1, 1]
    )  # less crowded


def test_parents_outside_of_the_bounds_have_children_inside():
    cross = BoundedSBX(low=-1.0, high=1.0, rate=1.0)
    child = cross(jax.random.key(0), jnp.full((4, 8), 1.2), jnp.full((4, 8), 0.5))
    assert (jnp.abs(child) <= 1).all()
