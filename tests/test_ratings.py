"""Ratings against scipy's optimum, numerical integration and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

from evorl.errors import OptionError
from evorl.leagues import plots
from evorl.leagues.ratings import ELO_SCALE, Skills, fit_elo, fit_multidimensional_elo, nash_averaging, update_trueskill

ROCK_PAPER_SCISSORS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], np.float32)


def wins(strengths, games, rng):
    """Of a round robin of players whose log-odds are differences of strengths."""
    won = np.zeros((len(strengths),) * 2)
    for i in range(len(strengths)):
        for j in range(i):
            won[i, j] = rng.binomial(games, 1 / (1 + np.exp(strengths[j] - strengths[i])))
            won[j, i] = games - won[i, j]
    return won


def test_elo_is_scipys_maximum_of_the_likelihood_and_its_curvature():
    rng = np.random.default_rng(0)
    won = wins(np.linspace(-1, 1, 6), 200, rng)

    def loss(x):
        x = np.r_[x, -x.sum()]
        return (won * np.logaddexp(0, x[None] - x[:, None])).sum()

    x = optimize.minimize(loss, np.zeros(5), method="BFGS", options={"gtol": 1e-6}).x
    x = np.r_[x, -x.sum()]
    found = jax.jit(fit_elo)(jnp.asarray(won, jnp.float32))
    np.testing.assert_allclose(found.rating, ELO_SCALE * x, atol=0.3)
    p = 1 / (1 + np.exp(x[None] - x[:, None]))
    each = (won + won.T) * p * (1 - p)
    curvature = np.diag(each.sum(1)) - each
    np.testing.assert_allclose(found.standard_error, ELO_SCALE * np.sqrt(np.diag(np.linalg.pinv(curvature))), rtol=1e-2)


@pytest.mark.parametrize(("n", "games"), [(2, 200_000), (10, 20_000), (10, 200_000), (100, 20_000)])
def test_elo_and_its_errors_are_right_with_many_games(n, games):
    won = wins(np.linspace(-1, 1, n), games, np.random.default_rng(0))
    found = jax.jit(fit_elo)(jnp.asarray(won, jnp.float32))
    rating = np.asarray(found.rating, np.float64) / ELO_SCALE
    p = 1 / (1 + np.exp(rating[None] - rating[:, None]))
    each = (won + won.T) * p * (1 - p)
    errors = ELO_SCALE * np.sqrt(np.diag(np.linalg.pinv(np.diag(each.sum(1)) - each)))
    np.testing.assert_allclose(found.standard_error, errors, rtol=1e-3)
    assert np.abs(found.rating - ELO_SCALE * np.linspace(-1, 1, n)).max() < 5 * errors.max()


def test_elo_of_two_is_the_log_odds_and_a_draw_is_half_of_a_win():
    found = jax.jit(fit_elo)(np.float32([[0, 75], [25, 0]]))
    np.testing.assert_allclose(found.rating[0] - found.rating[1], 400 * np.log10(3), atol=0.1)
    np.testing.assert_allclose(found.standard_error, ELO_SCALE / 2 / np.sqrt(100 * 0.75 * 0.25), rtol=1e-3)


def test_elo_of_who_always_wins_or_has_no_opponent_in_common_is_finite_and_unsure():
    always = fit_elo(jnp.array([[0.0, 50.0], [0.0, 0.0]]))
    assert 500 < always.rating[0] - always.rating[1] < 4000
    assert (always.standard_error > 100).all()
    apart = np.zeros((4, 4), np.float32)
    apart[:2, :2] = apart[2:, 2:] = [[0, 60], [40, 0]]
    found = fit_elo(jnp.asarray(apart))
    np.testing.assert_allclose(found.rating[:2], found.rating[2:], atol=1)
    assert (found.standard_error > 1000).all()


def moments(mean, std, noise, margin, drawn):
    """Of both skills after a game, by integration over the first one's."""
    spread = np.sqrt(std[1] ** 2 + 2 * noise**2)

    def likelihood(x):
        cdf = stats.norm(x - mean[1], spread).cdf
        return cdf(margin) - cdf(-margin) if drawn else 1 - cdf(margin)

    def integral(power):
        def f(x):
            return x**power * stats.norm(mean[0], std[0]).pdf(x) * likelihood(x)

        return integrate.quad(f, mean[0] - 10 * std[0], mean[0] + 10 * std[0], epsabs=1e-12)[0]

    mass, first, second = (integral(i) for i in range(3))
    return first / mass, np.sqrt(second / mass - (first / mass) ** 2)


@pytest.mark.program
def test_a_game_changes_skills_as_integration_does():
    skills = Skills(jnp.array([25.0, 28.0]), jnp.array([6.0, 3.0]))
    for drawn in (False, True):
        after = update_trueskill(skills, jnp.array([[0, 1]]), jnp.array([drawn]))
        mean, std = moments((25.0, 28.0), (6.0, 3.0), 25 / 6, 0.74, drawn)
        np.testing.assert_allclose([after.mean[0], after.std[0]], [mean, std], rtol=1e-4)


@pytest.mark.program
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("means", [(45.0, 10.0), (10.0, 45.0)])
def test_the_skill_of_a_clear_favorite_changes_as_integration_does(means, drawn):
    """A difference of 5.8 standard deviations, where a probability next to 1 would be rounded to it."""
    after = update_trueskill(Skills(jnp.array(means), jnp.ones(2)), jnp.array([[0, 1]]), jnp.array([drawn]))
    mean, std = moments(means, (1.0, 1.0), 25 / 6, 0.74, drawn)
    np.testing.assert_allclose([after.mean[0], after.std[0]], [mean, std], rtol=1e-3)


def test_skills_find_the_order_of_players():
    rng = np.random.default_rng(1)
    strengths, games = np.array([20.0, 25.0, 30.0]), []
    for _ in range(300):
        i, j = rng.permutation(3)[:2]
        wins_first = rng.normal(strengths[i], 25 / 6) > rng.normal(strengths[j], 25 / 6)
        games.append((i, j) if wins_first else (j, i))
    after = jax.jit(update_trueskill)(Skills.from_prior(3), jnp.asarray(games), jnp.zeros(300, bool))
    np.testing.assert_allclose(after.mean - after.mean.mean(), strengths - 25, atol=3 * after.std.max())
    assert after.std.max() < 1


def test_multidimensional_elo_tells_a_cycle_that_elo_does_not():
    found = fit_multidimensional_elo(jnp.asarray(2 * ROCK_PAPER_SCISSORS))
    np.testing.assert_allclose(found.rating, 0, atol=1e-6)
    np.testing.assert_allclose(found.cyclic_share, 1, atol=1e-6)
    np.testing.assert_allclose(found.log_odds, 2 * ROCK_PAPER_SCISSORS, atol=1e-5)
    transitive = np.subtract.outer(np.arange(4.0), np.arange(4.0)).astype(np.float32)
    found = fit_multidimensional_elo(jnp.asarray(transitive))
    np.testing.assert_allclose(found.rating, np.arange(4) - 1.5, atol=1e-6)
    np.testing.assert_allclose(found.cyclic_share, 0, atol=1e-6)


def test_planes_of_cycles_add_up_to_all_log_odds():
    a = np.random.default_rng(2).normal(size=(6, 6)).astype(np.float32)
    odds = a - a.T
    apart = [np.abs(fit_multidimensional_elo(jnp.asarray(odds), n).log_odds - odds).max() for n in (1, 2, 3)]
    assert apart[0] > apart[1] > apart[2]
    np.testing.assert_allclose(apart[2], 0, atol=1e-4)
    rating = odds.mean(1)
    rest = odds - np.subtract.outer(rating, rating)
    found = fit_multidimensional_elo(jnp.asarray(odds))
    np.testing.assert_allclose(found.cyclic_share, (rest**2).sum() / (odds**2).sum(), rtol=1e-4)
    plane = found.log_odds - np.subtract.outer(rating, rating)
    np.testing.assert_allclose(np.linalg.norm(rest - plane) ** 2, (np.linalg.svd(rest)[1][2:] ** 2).sum(), rtol=1e-3)


@pytest.mark.program
def test_nash_averaging_counts_who_is_there_twice_once():
    twice = [0, 1, 2, 2]
    skill, weights = nash_averaging(jnp.asarray(ROCK_PAPER_SCISSORS[twice][:, twice]))
    np.testing.assert_allclose(skill, 0, atol=1e-4)
    np.testing.assert_allclose([*weights[:2], weights[2:].sum()], 1 / 3, atol=1e-4)
    skill, weights = nash_averaging(jnp.asarray(np.subtract.outer(np.arange(3.0), np.arange(3.0)), jnp.float32))
    np.testing.assert_allclose(skill, [-2, -1, 0], atol=1e-4)
    np.testing.assert_allclose(weights, [0, 0, 1], atol=1e-4)


@pytest.mark.program
@pytest.mark.parametrize("lost", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("rating", "name"), [(fit_elo, "won"), (fit_multidimensional_elo, "log_odds"), (nash_averaging, "payoffs")]
)
def test_every_rating_names_a_cell_that_is_not_finite(rating, name, lost):
    table = jnp.asarray(ROCK_PAPER_SCISSORS).at[0, 2].set(lost)
    with pytest.raises(OptionError, match=rf"^{name}\[0, 2\]={lost}: must be finite$"):
        rating(table)
    found = jax.jit(rating)(table)
    assert all(np.isnan(x).all() for x in jax.tree.leaves(found))


def test_ratings_of_what_is_not_antisymmetric_or_of_unknown_skill_are_refused():
    with pytest.raises(OptionError, match=r"^payoffs\[0, 1\]=3, payoffs\[1, 0\]=1: must sum to 0"):
        nash_averaging(jnp.asarray(ROCK_PAPER_SCISSORS).at[0, 1].set(3.0))
    with pytest.raises(OptionError, match=r"^skills.mean\[1\]=nan: must be finite$"):
        update_trueskill(Skills(jnp.array([25.0, jnp.nan]), jnp.ones(2)), jnp.array([[0, 1]]), jnp.array([False]))


def test_pictures_hold_the_numbers():
    chart = plots.plot_payoffs(ROCK_PAPER_SCISSORS, ["rock", "paper", "scissors"], np.full((3, 3), 0.1))
    cells = chart.tables["rows"].columns
    np.testing.assert_array_equal(np.reshape(cells["payoff"], (3, 3)), ROCK_PAPER_SCISSORS)
    assert cells["text"][:2] == ["0 ±0.1", "-1 ±0.1"]
    weights = np.eye(4)[:3]
    above, below = plots.plot_iterations(weights, [3.0, 2.0, 1.0])
    np.testing.assert_array_equal(np.reshape(above.tables["rows"].columns["weight"], (3, 4)), weights)
    np.testing.assert_array_equal(below.tables["rows"].columns["y"], [3, 2, 1])
