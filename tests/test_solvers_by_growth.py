"""Replicator dynamics, prioritized and rectified weights, against NumPy and OpenSpiel."""

import jax
import numpy as np
import pytest

from evorl.errors import OptionError
from evorl.leagues.alpha_rank import AlphaRank
from evorl.leagues.fictitious import RegretMatching
from evorl.leagues.prioritized import PFSP, RectifiedNash
from evorl.leagues.replicator import ProjectedReplicator, Replicator
from evorl.leagues.solvers import Solver
from tests.test_solvers import ROCK_PAPER_SCISSORS, embedded, zero_sum

SHAPES = (3, 4), (5, 5), (2, 3, 4)
FLOORED, GROWING = ProjectedReplicator(1e-2, 0.05, 400), Replicator(1e-2, 400)


def random_games(n):
    """Of two and three players, zero-sum and general-sum."""
    rng = np.random.default_rng(10)
    for i in range(n):
        shape = SHAPES[i % len(SHAPES)]
        payoffs = rng.normal(size=(len(shape), *shape)).astype(np.float32)
        yield zero_sum(payoffs[0]) if i % 2 and len(shape) == 2 else payoffs


def nearest(w, floor):
    """The nearest mixture with no weight below a floor, by bisection."""
    low, high = -1.0, 1.0
    for _ in range(60):
        x = (low + high) / 2
        low, high = (x, high) if np.maximum(w - x, floor).sum() > 1 else (low, x)
    return np.maximum(w - x, floor)


def grown(payoffs, dt, floor, steps):
    now = [np.full(n, 1 / n) for n in payoffs.shape[1:]]
    total = [x.copy() for x in now]
    for _ in range(steps):
        each = list(of_each(payoffs, now))
        now = [nearest(x + dt * x * (e - e @ x), floor) for x, e in zip(now, each, strict=True)]
        total = [t + x for t, x in zip(total, now, strict=True)]
    return [t / (steps + 1) for t in total]


def of_each(payoffs, weights):
    letters = "abc"[: len(weights)]
    for i, own in enumerate(payoffs):
        others = [j for j in range(len(weights)) if j != i]
        yield np.einsum(
            f"{letters},{','.join(letters[j] for j in others)}->{letters[i]}", own, *[weights[j] for j in others]
        )


@pytest.mark.parametrize("solver", [FLOORED, GROWING])
def test_growth_is_that_of_numpy(solver):
    assert isinstance(solver, Solver)
    solve = jax.jit(solver)
    for payoffs in random_games(4):
        weights, _ = solve(*embedded(payoffs, 5))
        expected = grown(payoffs.astype(float), solver.dt, getattr(solver, "floor", 0.0), solver.steps)
        for found, x in zip(weights, expected, strict=True):
            np.testing.assert_allclose(found[: len(x)], x, atol=1e-5)
            assert not found[len(x) :].any()


def test_small_payoffs_grow_over_many_steps():
    """A gain of 1e-4 of which each step of float32 would lose most: the ratio of two weights is exp(dt gain steps)."""
    gain, steps = 1e-4, 200_000
    payoffs = np.zeros((2, 2, 1), np.float32)
    payoffs[0, 1] = gain
    odds = np.exp(1e-3 * gain * np.arange(steps + 1))
    weights, _ = jax.jit(Replicator(steps=steps))(*embedded(payoffs, 2))
    np.testing.assert_allclose(weights[0, 1], (odds / (1 + odds)).mean(), atol=1e-6)


def test_ten_games_are_those_of_open_spiel():
    """By its projected replicator dynamics, regret matching, and, where networkx is there, alpha-rank."""
    pytest.importorskip("open_spiel", reason="OpenSpiel is not in evorl[test]; NumPy is compared with there")
    from open_spiel.python.algorithms.projected_replicator_dynamics import projected_replicator_dynamics
    from open_spiel.python.algorithms.regret_matching import regret_matching

    floored, matching = jax.jit(ProjectedReplicator(steps=1000)), jax.jit(RegretMatching(201))
    for payoffs in random_games(10):
        given, tables = embedded(payoffs, 5), list(payoffs.astype(float))
        projected = projected_replicator_dynamics(tables, prd_iterations=1000, prd_dt=1e-3, prd_gamma=1e-10)
        matched = regret_matching(tables, iterations=200, gamma=0)
        for solve, expected, close in ((floored, projected, 1e-5), (matching, matched, 1e-3)):
            weights, _ = solve(*given)
            for found, x in zip(weights, expected, strict=True):
                np.testing.assert_allclose(found[: len(x)], x, atol=close)


def test_alpha_rank_of_ten_games_is_that_of_open_spiel():
    alpharank = pytest.importorskip("open_spiel.python.egt.alpharank", reason="needs OpenSpiel and networkx")
    of_profiles = jax.jit(AlphaRank().profiles)
    for payoffs in random_games(10):
        found = of_profiles(*embedded(payoffs, 5))[tuple(map(slice, payoffs.shape[1:]))]
        np.testing.assert_allclose(found.reshape(-1), alpharank.sweep_pi_vs_epsilon(list(payoffs)), atol=1e-4)


def test_floors_are_told_in_one_line():
    with pytest.raises(OptionError, match=r"^floor=0.3: must be at most 1 / 5 policies$"):
        ProjectedReplicator(floor=0.3)(*embedded(zero_sum(ROCK_PAPER_SCISSORS), 5))
    with pytest.raises(OptionError, match=r"^dt=0: must be above 0$"):
        Replicator(dt=0)
    with pytest.raises(OptionError, match=r"^unknown priority hart; did you mean hard\?$"):
        PFSP("hart")


@pytest.mark.parametrize(("priority", "expected"), [("hard", [0, 1, 0.25]), ("even", [0, 0, 0.25])])
def test_pfsp_by_who_the_newest_beats(priority, expected):
    """Scissors, the newest, beat paper always, rock never, and themselves half of the time."""
    given = embedded(zero_sum(ROCK_PAPER_SCISSORS[[1, 0, 2]][:, [1, 0, 2]]), 4)
    weights, _ = PFSP(priority)(*given)
    np.testing.assert_allclose(weights, [[*expected, 0] / np.sum(expected)] * 2, atol=1e-6)
    weights, _ = PFSP()(*embedded(np.zeros((2, 3, 3)), 4))
    np.testing.assert_allclose(weights, [[1 / 3, 1 / 3, 1 / 3, 0]] * 2, atol=1e-6)


def test_pfsp_of_three_players_is_of_what_the_newest_of_the_others_earn():
    payoffs = np.random.default_rng(11).normal(size=(3, 2, 3, 3)).astype(np.float32)
    weights, _ = PFSP()(*embedded(payoffs, 3))
    others = (payoffs[0] + payoffs[2])[1, :, 2] / 2  # of the second player's policies
    missed = 1 - (1 + others / np.abs(payoffs).max()) / 2
    np.testing.assert_allclose(weights[1], missed**2 / (missed**2).sum(), rtol=1e-4)


def test_rectified_nash_trains_each_against_those_that_it_beats():
    given = embedded(zero_sum(ROCK_PAPER_SCISSORS), 4)
    solver = RectifiedNash()
    weights, lacks = solver(*given)
    np.testing.assert_allclose(weights, [[1 / 3, 1 / 3, 1 / 3, 0]] * 2, atol=1e-4)
    assert lacks < 1e-4
    training = solver.training(*given, weights)
    beats_or_ties = [[0.5, 0, 0.5, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(training, [beats_or_ties] * 2, atol=1e-4)


def test_rectified_nash_of_a_game_that_is_not_fair():
    """A policy is better than the value against some of the other's support, and no row weighs what lies outside."""
    a = np.random.default_rng(12).normal(size=(4, 5)).astype(np.float32) + 3
    given = embedded(zero_sum(a), 5)
    weights, _ = RectifiedNash()(*given)
    training = np.asarray(RectifiedNash().training(*given, weights))
    x, y = weights[0, :4], weights[1]
    for i in range(4):
        kept = np.where(a[i] >= x @ a @ y - 1e-4, y, 0)
        expected = kept / kept.sum() if x[i] > 1e-3 else np.zeros(5)
        np.testing.assert_allclose(training[0, i], expected, atol=1e-4)
