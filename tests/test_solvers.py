"""Meta-solvers against linear programs and NumPy, on random games, with and without masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from evorl.errors import OptionError
from evorl.leagues.alpha_rank import AlphaRank
from evorl.leagues.auto_solver import AutoSolver
from evorl.leagues.fictitious_play import FictitiousPlay, RegretMatching
from evorl.leagues.meta_games import compute_deviation_gains, compute_gap
from evorl.leagues.nash import Nash
from evorl.leagues.payoffs import Payoffs
from evorl.leagues.prioritized_solvers import PFSP, RectifiedNash
from evorl.leagues.replicator import ProjectedReplicator, Replicator
from evorl.leagues.solvers import MetaSolver, NewestPolicySolver, UniformlyMixedSolver, UniformMixture

CAPACITY = 8
ROCK_PAPER_SCISSORS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], np.float32)


def zero_sum(a):
    return np.stack([a, -a])


def embedded(payoffs, capacity=CAPACITY):
    """A table with places left, which hold NaN, and its mask."""
    shape = payoffs.shape[1:]
    table = np.full((len(shape), *[capacity] * len(shape)), np.nan, np.float32)
    table[(slice(None), *map(slice, shape))] = payoffs
    return jnp.asarray(table), jnp.asarray([np.arange(capacity) < n for n in shape])


def linear_program(a):
    """The value of a zero-sum game."""
    rows, columns = a.shape
    bounds = [(0, None)] * rows + [(None, None)]
    at_least, even = np.c_[-a.T, np.ones(columns)], [np.r_[np.ones(rows), 0]]
    return -linprog(np.r_[np.zeros(rows), -1], at_least, np.zeros(columns), even, [1], bounds).fun


def gap_in_numpy(payoffs, weights):
    """By every joint choice of policies."""
    most = 0.0
    for player, own in enumerate(payoffs):
        joint = np.ones(())
        for other, x in enumerate(weights):
            joint = np.multiply.outer(joint, np.ones_like(x) if other == player else x)
        axes = tuple(i for i in range(len(weights)) if i != player)
        each = (own * joint).sum(axes)
        most = max(most, each.max() - each @ weights[player])
    return most


def games(rng, n):
    """Zero-sum games of all kinds: dense, of many ties, of low rank, of policies that are there twice."""
    for i in range(n):
        rows, columns = rng.integers(1, CAPACITY + 1, 2)
        a = rng.normal(size=(rows, columns))
        if i % 4 == 1:
            a = np.round(a)
        elif i % 4 == 2:
            a = rng.normal(size=(rows, 2)) @ rng.normal(size=(2, columns))
        elif i % 4 == 3:
            a = a[rng.integers(0, rows, rows)][:, rng.integers(0, columns, columns)]
        yield a.astype(np.float32)


def test_nash_is_the_linear_programs_value_within_its_gap():
    solve = jax.jit(Nash())
    for a in games(np.random.default_rng(0), 40):
        weights, lacks = solve(*embedded(zero_sum(a)))
        x, y = np.asarray(weights[0, : a.shape[0]]), np.asarray(weights[1, : a.shape[1]])
        scale = max(np.ptp(zero_sum(a)), 1e-6)
        assert lacks <= 2e-5 * scale
        np.testing.assert_allclose(lacks, gap_in_numpy(zero_sum(a), (x, y)), atol=1e-5 * scale)
        np.testing.assert_allclose(x @ a @ y, linear_program(a), atol=1e-4 * scale)
        np.testing.assert_allclose([x.sum(), y.sum()], 1, atol=1e-5)
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)


def test_nash_of_sixty_policies():
    a = np.random.default_rng(1).normal(size=(60, 60)).astype(np.float32)
    weights, lacks = jax.jit(Nash())(jnp.asarray(zero_sum(a)), jnp.ones((2, 60), bool))
    assert lacks <= 2e-5 * np.ptp(zero_sum(a))
    np.testing.assert_allclose(weights[0] @ a @ weights[1], linear_program(a), atol=1e-4 * np.ptp(a))


@pytest.mark.program
@pytest.mark.parametrize(
    "solver", [UniformMixture(), NewestPolicySolver(), Nash(), FictitiousPlay(50), RegretMatching(50), AlphaRank()]
)
def test_a_masked_solve_is_that_of_the_smaller_game_and_may_be_vmapped(solver):
    assert isinstance(solver, MetaSolver)
    solver.check(2, zero_sum=True)
    a = zero_sum(np.random.default_rng(2).normal(size=(3, 5)).astype(np.float32))
    small, places = embedded(a, 5)
    large, mask = embedded(a)
    solve = jax.jit(jax.vmap(solver))
    tables = jnp.stack([large, jnp.nan_to_num(large, nan=7.0)])
    weights, lacks = solve(tables, jnp.stack([mask, mask]))
    alone, lack = solver(small, places)
    np.testing.assert_allclose(weights[:, :, :5], np.stack([alone, alone]), atol=1e-5)
    np.testing.assert_allclose(lacks, [lack, lack], atol=1e-5)
    assert not weights[:, :, 5:].any()
    assert not weights[:, 0, 3:].any()
    scattered = jnp.array([1, 6, 3])  # of the first player's places, in another order
    moved = jnp.full_like(large, jnp.nan).at[:, scattered].set(large[:, :3])
    mask = mask.at[0].set(False).at[0, scattered].set(True)
    if not isinstance(solver, (NewestPolicySolver, FictitiousPlay)):  # which know an order
        weights, _ = solver(moved, mask)
        np.testing.assert_allclose(weights[0, scattered], alone[0, :3], atol=1e-5)


def test_uniform_last_and_mixtures():
    payoffs, mask = embedded(zero_sum(ROCK_PAPER_SCISSORS), 4)
    weights, lacks = UniformMixture()(payoffs, mask)
    np.testing.assert_allclose(weights, [[1 / 3, 1 / 3, 1 / 3, 0]] * 2, atol=1e-6)
    np.testing.assert_allclose(lacks, 0, atol=1e-6)
    weights, lacks = NewestPolicySolver()(payoffs, mask)
    np.testing.assert_array_equal(weights, [[0, 0, 1, 0]] * 2)
    assert lacks == 1
    weights, lacks = UniformlyMixedSolver(NewestPolicySolver(), 0.3)(payoffs, mask)
    np.testing.assert_allclose(weights, [[0.1, 0.1, 0.8, 0]] * 2, atol=1e-6)
    np.testing.assert_allclose(lacks, 0.7, atol=1e-6)


def test_gains_of_three_players_are_those_of_numpy():
    rng = np.random.default_rng(3)
    payoffs = rng.normal(size=(3, 2, 4, 3)).astype(np.float32)
    weights = [rng.dirichlet(np.ones(n)).astype(np.float32) for n in payoffs.shape[1:]]
    table, mask = embedded(payoffs, 4)
    padded = jnp.stack([jnp.pad(x, (0, 4 - len(x))) for x in weights])
    np.testing.assert_allclose(compute_gap(table, mask, padded), gap_in_numpy(payoffs, weights), rtol=1e-5)
    assert compute_deviation_gains(table, mask, padded).max() == compute_gap(table, mask, padded)
    with pytest.raises(OptionError, match=r"^payoffs=\[3, 4, 4\]: must be \[3, 4, 4, 4\]$"):
        compute_gap(table[:, 0], mask, padded)


@pytest.mark.parametrize(("solver", "most"), [(FictitiousPlay(), 0.02), (RegretMatching(), 0.01)])
def test_play_comes_near_the_linear_programs_value(solver, most):
    solve = jax.jit(solver)
    for a in games(np.random.default_rng(4), 10):
        weights, lacks = solve(*embedded(zero_sum(a)))
        scale = max(np.ptp(zero_sum(a)), 1e-6)
        assert lacks <= most * scale
        value = np.asarray(weights[0, : a.shape[0]]) @ a @ np.asarray(weights[1, : a.shape[1]])
        np.testing.assert_allclose(value, linear_program(a), atol=2 * most * scale)


def test_fictitious_play_is_numpys():
    a = np.random.default_rng(5).normal(size=(4, 6)).astype(np.float32)
    x, y = np.full(4, 1 / 4), np.full(6, 1 / 6)
    for i in range(30):
        rows, columns = np.eye(4)[(a @ y).argmax()], np.eye(6)[(x @ a).argmin()]
        x, y = x + (rows - x) / (i + 2), y + (columns - y) / (i + 2)
    weights, _ = jax.jit(FictitiousPlay(30))(*embedded(zero_sum(a)))
    np.testing.assert_allclose(weights[0, :4], x, atol=1e-5)
    np.testing.assert_allclose(weights[1, :6], y, atol=1e-5)


def chain_in_numpy(payoffs, e):
    """The stationary weights of profiles by an eigenvector."""
    sizes = payoffs.shape[1:]
    all_profiles = list(np.ndindex(*sizes))
    h, moves = 1 / sum(n - 1 for n in sizes), np.zeros((len(all_profiles),) * 2)
    for s, now in enumerate(all_profiles):
        for t, then in enumerate(all_profiles):
            moved = [i for i in range(len(sizes)) if now[i] != then[i]]
            if len(moved) == 1:
                gain = payoffs[(*moved, *then)] - payoffs[(*moved, *now)]
                moves[s, t] = h * (1 - e if gain > 0 else 0.5 if gain == 0 else e)
        moves[s, s] = 1 - moves[s].sum()
    values, vectors = np.linalg.eig(moves.T)
    found = np.real(vectors[:, np.argmin(np.abs(values - 1))])
    return (found / found.sum()).reshape(sizes)


@pytest.mark.parametrize("sizes", [(3, 4), (2, 3, 2)])
def test_alpha_rank_is_an_eigenvector(sizes):
    """Of general-sum games, some with ties."""
    rng = np.random.default_rng(6)
    of_profiles = jax.jit(AlphaRank().compute_profile_weights)
    for i in range(5):
        payoffs = rng.normal(size=(len(sizes), *sizes)).astype(np.float32)
        payoffs = np.round(payoffs) if i % 2 else payoffs
        found = of_profiles(*embedded(payoffs, 5))[tuple(map(slice, sizes))]
        np.testing.assert_allclose(found, chain_in_numpy(payoffs, 1e-6), atol=1e-4)


@pytest.mark.program
def test_alpha_rank_of_rock_paper_scissors_is_even_and_of_a_dilemma_the_equilibrium():
    weights, _ = AlphaRank()(*embedded(zero_sum(ROCK_PAPER_SCISSORS), 4))
    np.testing.assert_allclose(weights, [[1 / 3, 1 / 3, 1 / 3, 0]] * 2, atol=1e-5)
    dilemma = np.array([[3.0, 0.0], [5.0, 1.0]])
    weights, lacks = AlphaRank()(*embedded(np.stack([dilemma, dilemma.T]), 3))
    np.testing.assert_allclose(weights, [[0, 1, 0]] * 2, atol=1e-5)
    assert lacks < 1e-4


def test_what_solvers_refuse_is_told_in_one_line():
    general, mask = embedded(np.random.default_rng(7).normal(size=(2, 3, 3)).astype(np.float32))
    with pytest.raises(OptionError, match=r"^solver=Nash: solves two-player zero-sum games, not a general-sum game;"):
        Nash()(general, mask)
    with pytest.raises(OptionError, match=r"^solver=Nash: solves two-player zero-sum games, not 3 players;"):
        Nash()(*embedded(np.zeros((3, 2, 2, 2)), 2))
    with pytest.raises(OptionError, match=r"^solver=Nash: .* not a general-sum game;"):
        UniformlyMixedSolver(Nash()).check(2, zero_sum=False)
    with pytest.raises(OptionError, match=r"^uniform=1.5: must be between 0 and 1$"):
        UniformlyMixedSolver(Nash(), 1.5)
    with pytest.raises(OptionError, match=r"^capacity=80: AlphaRank supports at most 6000 profiles$"):
        AlphaRank()(jnp.zeros((2, 80, 80)), jnp.ones((2, 80), bool))


@pytest.mark.parametrize("offset", [0, 1e2, 1e4, 1e6])
def test_nash_is_as_precise_whatever_is_added_to_payoffs(offset):
    """It is the linear program of the payoffs as float32 has them, within 1e-4 of the range."""
    rng = np.random.default_rng(9)
    solve = jax.jit(Nash())
    for _ in range(5):
        a = (rng.normal(size=(6, 7)) + offset).astype(np.float32)
        exact = a.astype(np.float64)
        for b in (-a, (2 * offset - exact).astype(np.float32)):
            weights, lacks = solve(*embedded(np.stack([a, b])))
            x, y = np.asarray(weights[0, :6], np.float64), np.asarray(weights[1, :7], np.float64)
            x, y = x / x.sum(), y / y.sum()
            scale = np.ptp(a)
            assert lacks <= 1e-4 * scale
            assert (exact @ y).max() - (x @ exact).min() <= 1e-4 * scale
            np.testing.assert_allclose(x @ (exact - offset) @ y, linear_program(exact - offset), atol=1e-4 * scale)


DOMINATED = np.array([[[3, 2], [1, 0]], [[5, 0], [5, 0]]], np.float32)  # the first policies are better for both


def test_general_sum_games_have_another_solver_and_are_none_for_nash():
    payoffs, mask = jnp.asarray(DOMINATED), jnp.ones((2, 2), bool)
    opposed = jnp.asarray(zero_sum(DOMINATED[0]))
    weights, _ = jax.jit(jax.vmap(AutoSolver()))(jnp.stack([payoffs, 1e3 * payoffs, opposed]), jnp.stack([mask] * 3))
    assert (weights[:2, :, 0] > 0.95).all()
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-4)
    np.testing.assert_allclose(weights[2], [[1, 0], [0, 1]], atol=1e-4)
    weights, lacks = jax.jit(Nash())(payoffs, mask)
    assert np.isnan(weights).all()
    assert np.isnan(lacks)
    AutoSolver().check(3, zero_sum=True)
    assert AutoSolver().select_solver(2, zero_sum=True) == Nash()


@pytest.mark.program
@pytest.mark.parametrize("lost", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "solver",
    [
        *(
            UniformMixture(),
            NewestPolicySolver(),
            UniformlyMixedSolver(Nash()),
            Nash(),
            RectifiedNash(),
            AlphaRank(),
            PFSP(),
            AutoSolver(),
        ),
        *(FictitiousPlay(5), RegretMatching(5), Replicator(steps=5), ProjectedReplicator(steps=5)),
    ],
)
def test_every_solver_names_a_cell_that_is_not_finite(solver, lost):
    payoffs, mask = embedded(zero_sum(ROCK_PAPER_SCISSORS), 4)
    payoffs = payoffs.at[1, 2, 0].set(lost)
    with pytest.raises(OptionError, match=rf"^payoffs\[1, 2, 0\]={lost}: must be finite$"):
        solver(payoffs, mask)
    weights, lacks = jax.jit(solver)(payoffs, mask)
    assert np.isnan(weights).all()
    assert not np.isfinite(lacks)


def test_the_variance_of_sums_tells_games_of_a_constant_sum():
    rng = np.random.default_rng(10)
    first, other = rng.normal(size=(2, 30)).astype(np.float32)
    for players, expected in (
        (np.stack([first, 4 - first]), 0),
        (np.stack([first, other]), (first + other).var(ddof=1)),
    ):
        found = Payoffs.from_returns(jnp.asarray(players.T[:, :, None, None]))
        np.testing.assert_allclose(found.sum_variance.ravel(), [expected] * 2, rtol=1e-5, atol=1e-12)
        halves = Payoffs.from_returns(jnp.asarray(players.T[:10, :, None, None]))
        halves = halves.combine(Payoffs.from_returns(jnp.asarray(players.T[10:, :, None, None])))
        np.testing.assert_allclose(halves.sum_variance.ravel(), [expected] * 2, rtol=1e-5, atol=1e-12)


def test_payoffs_fill_new_cells_and_combine_episodes_as_numpy_does():
    rng = np.random.default_rng(8)
    table = Payoffs.empty(2, 3)
    assert table.mean.shape == (2, 3, 3)
    assert np.isinf(table.standard_errors).all()
    first, second = (rng.normal(size=(n, 2, 3, 3)).astype(np.float32) for n in (40, 60))
    new = jnp.zeros((3, 3), bool).at[:2, :2].set(True)
    filled = table.with_cells(Payoffs.from_returns(jnp.asarray(first)), new)
    np.testing.assert_allclose(filled.mean[:, :2, :2], first.mean(0)[:, :2, :2], atol=1e-6)
    assert not filled.episodes[:, 2].any()
    whole = filled.combine(Payoffs.from_returns(jnp.asarray(second)))
    both = np.concatenate([first, second])
    np.testing.assert_allclose(whole.mean[:, :2, :2], both.mean(0)[:, :2, :2], atol=1e-6)
    np.testing.assert_allclose(whole.variance[:, :2, :2], both.var(0, ddof=1)[:, :2, :2], rtol=1e-5)
    np.testing.assert_allclose(whole.standard_errors[:, :2, :2], both.std(0, ddof=1)[:, :2, :2] / 10, rtol=1e-5)
    np.testing.assert_allclose(whole.variance[:, 2], second.var(0, ddof=1)[:, 2], rtol=1e-5)
    exact = Payoffs.from_expected(jnp.ones((2, 3, 3)))
    for known in (whole.combine(exact), exact.combine(whole), exact.combine(exact)):
        np.testing.assert_array_equal(known.mean, 1)
        assert not known.standard_errors.any()
        assert not known.variance.any()
    assert np.isinf(Payoffs.from_returns(jnp.asarray(first[:1])).standard_errors).all()
