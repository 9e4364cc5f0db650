"""Replicator dynamics, prioritized and rectified weights, against NumPy and OpenSpiel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.errors import OptionError
from evorl.leagues.alpha_rank import AlphaRank
from evorl.leagues.exact import best_response, mix_policies
from evorl.leagues.fictitious_play import RegretMatching
from evorl.leagues.nash import Nash
from evorl.leagues.oracles import BestResponseOracle
from evorl.leagues.prioritized_solvers import PFSP, RectifiedNash
from evorl.leagues.psro import PSRO
from evorl.leagues.replicator import ProjectedReplicator, Replicator
from evorl.leagues.solvers import MetaSolver, RectifyingSolver
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
    assert isinstance(solver, MetaSolver)
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
    of_profiles = jax.jit(AlphaRank().compute_profile_weights)
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
    weights, _ = jax.jit(PFSP(priority))(*given)
    np.testing.assert_allclose(weights, [[*expected, 0] / np.sum(expected)] * 2, atol=1e-6)
    weights, _ = PFSP()(*embedded(np.zeros((2, 3, 3)), 4))
    np.testing.assert_allclose(weights, [[1 / 3, 1 / 3, 1 / 3, 0]] * 2, atol=1e-6)


def test_pfsp_of_three_players_is_of_what_the_newest_of_the_others_earn():
    payoffs = np.random.default_rng(11).normal(size=(3, 2, 3, 3)).astype(np.float32)
    weights, _ = jax.jit(PFSP())(*embedded(payoffs, 3))
    others = (payoffs[0] + payoffs[2])[1, :, 2] / 2  # of the second player's policies
    missed = 1 - (1 + others / np.abs(payoffs).max()) / 2
    np.testing.assert_allclose(weights[1], missed**2 / (missed**2).sum(), rtol=1e-4)


def test_rectified_nash_answers_those_that_the_best_policy_beats():
    """Of rock, paper and scissors, whose values here differ, the one with the most weight beats one and ties itself."""
    solver = RectifiedNash()
    given = embedded(zero_sum(np.array([[0, -1, 2], [1, 0, -3], [-2, 3, 0]], np.float32)), 4)
    weights, lacks = jax.jit(solver)(*given)
    np.testing.assert_allclose(weights, [[1 / 2, 1 / 3, 1 / 6, 0]] * 2, atol=1e-4)
    assert lacks < 1e-4
    np.testing.assert_allclose(solver.compute_opponent_mixtures(*given, weights), [[3 / 4, 0, 1 / 4, 0]] * 2, atol=1e-4)


def rectified(payoffs, weights):
    """Of two players the mixtures that answers meet, by NumPy."""
    x, y = (np.asarray(w, float) for w in weights)
    a = np.asarray(payoffs[0], float)
    kept = x * (a[:, y.argmax()] <= x @ a @ y + 1e-4), y * (a[x.argmax()] >= x @ a @ y - 1e-4)
    return np.stack([w / w.sum() for w in kept])


def test_rectified_nash_of_a_game_that_is_not_fair():
    """A policy gets the value from some of the other's support, and nothing outside has weight."""
    a = np.random.default_rng(12).normal(size=(5, 5)).astype(np.float32) + 3
    given = embedded(zero_sum(a), 5)
    weights, _ = jax.jit(RectifiedNash())(*given)
    expected = rectified(given[0], weights)
    assert np.abs(expected - weights).max() > 0.1
    np.testing.assert_allclose(RectifiedNash().compute_opponent_mixtures(*given, weights), expected, atol=1e-4)


@pytest.mark.program
def test_psro_answers_what_rectified_nash_makes_of_its_weights():
    psro = PSRO(ExtensiveFormGame(Kuhn()), BestResponseOracle(random_ties=False), RectifiedNash(), capacity=7)
    assert isinstance(psro.solver, RectifyingSolver)
    assert not isinstance(Nash(), RectifyingSolver)
    state, step, apart = psro.init(jax.random.key(0)), jax.jit(psro.step), 0.0
    most = jax.jit(lambda pool, weights: best_response(psro.tree, mix_policies(psro.tree, pool, weights))[0])
    for i in range(6):
        expected, pool = rectified(state.payoffs.mean, state.weights), state.pool
        apart = max(apart, np.abs(expected - state.weights).max())
        state, _ = step(state, jax.random.key(i))
        table = np.asarray(state.payoffs.mean)
        gets = table[0, i + 1] @ expected[1], table[1, :, i + 1] @ expected[0]
        np.testing.assert_allclose(gets, most(pool, jnp.asarray(expected, jnp.float32)), atol=1e-4)
    assert apart > 0.1
