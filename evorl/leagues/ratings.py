"""Ratings of players from their results against each other."""

import math

import jax
import jax.numpy as jnp
from flax import struct
from jax.core import Tracer
from jax.scipy.stats import norm
from jaxtyping import Array, Bool, Float, Int

from evorl.errors import OptionError
from evorl.leagues.meta_games import CONSTANT_SUM_TOLERANCE, require_finite
from evorl.leagues.nash import Nash

ELO_SCALE = 400 / math.log(10)  # Elo points that make the odds e to 1
NEWTON_STEPS, MAX_STEP = 50, 2.0  # of Newton's method; MAX_STEP is in units of ELO_SCALE
MIN_PROBABILITY = 1e-12  # lower bound of values that must be positive


@struct.dataclass
class EloRatings:
    """Elo ratings with mean 0, and their standard errors."""

    rating: Float[Array, " n"]
    standard_error: Float[Array, " n"]


def fit_elo(won: Float[Array, "n n"], prior: float = 4000.0) -> EloRatings:
    """Fit Elo ratings by maximum likelihood to the wins of each row against each column, with a draw as half a win.

    A weak Gaussian prior with a standard deviation of `prior` points keeps the ratings finite of players that
    always won or always lost. Players that are not connected by games keep their relative rating of the
    prior, with a standard error of about its size. Standard errors are those of the difference from the mean.

    Raise OptionError if a cell off the diagonal is not finite; under jit, all ratings are NaN then.
    """
    n, precision = len(won), (ELO_SCALE / prior) ** 2
    won = jnp.where(jnp.eye(n, dtype=bool), 0.0, won)
    require_finite("won", won)
    games = won + won.T
    centred = jnp.eye(n) - 1 / n

    def information(x: Float[Array, " n"]) -> Float[Array, "n n"]:
        p = jax.nn.sigmoid(x[:, None] - x)
        each = games * p * (1 - p)
        return jnp.diag(each.sum(1) + precision) - each + each.mean()  # the last term acts on the mean rating alone

    def step(_: Int[Array, ""], x: Float[Array, " n"]) -> Float[Array, " n"]:
        slope = (won - games * jax.nn.sigmoid(x[:, None] - x)).sum(1) - precision * x
        change = jnp.linalg.solve(information(x), slope)
        return centred @ (x + change * jnp.minimum(1.0, MAX_STEP / jnp.maximum(jnp.abs(change).max(), MIN_PROBABILITY)))

    x = jax.lax.fori_loop(0, NEWTON_STEPS, step, jnp.zeros(n))
    covariance = centred @ jnp.linalg.inv(information(x)) @ centred
    return EloRatings(ELO_SCALE * x, ELO_SCALE * jnp.sqrt(jnp.diagonal(covariance)))


@struct.dataclass
class Skills:
    """Normal distributions of the players' skills."""

    mean: Float[Array, " n"]
    std: Float[Array, " n"]

    @classmethod
    def from_prior(cls, n: int, mean: float = 25.0, std: float = 25 / 3) -> "Skills":
        """Return the prior distribution for n players."""
        return cls(jnp.full(n, mean), jnp.full(n, std))


def update_trueskill(
    skills: Skills,
    players: Int[Array, "games 2"],
    drawn: Bool[Array, " games"],
    noise: float = 25 / 6,
    margin: float = 0.74,
) -> Skills:
    """Update skills by games in order, each won by its first player unless it is drawn.

    TrueSkill for two players (Herbrich et al. 2006): each plays with its skill plus Gaussian noise, a game is
    drawn if the two differ by less than `margin`, and the posterior of both is matched by mean and variance.

    Raise OptionError if a skill is not finite; under jit, the skills of its opponents become NaN, too.
    """
    require_finite("skills.mean", skills.mean)
    require_finite("skills.std", skills.std)

    def update_match(now: Skills, result: tuple[Array, Array]) -> tuple[Skills, None]:
        who, draw = result
        mean, variance = now.mean[who], now.std[who] ** 2
        spread = jnp.sqrt(2 * noise**2 + variance.sum())
        by, e = (mean[0] - mean[1]) / spread, margin / spread
        of_draw, of_win = _truncate_to_interval(by, e), _truncate_above(by, e)
        moved, shrunk = (jnp.where(draw, *both) for both in zip(of_draw, of_win, strict=True))
        mean += jnp.array([1.0, -1.0]) * variance / spread * moved
        variance *= jnp.maximum(1 - variance / spread**2 * jnp.clip(shrunk, 0, 1), MIN_PROBABILITY)
        return Skills(now.mean.at[who].set(mean), now.std.at[who].set(jnp.sqrt(variance))), None

    return jax.lax.scan(update_match, skills, (players, drawn))[0]


def _truncate_above(by: Array, edge: Array) -> tuple[Array, Array]:
    """Return how a normal variable with mean `by` and variance 1 changes if it is above `edge`.

    Returns:
        The difference of its mean, and that of its variance with the opposite sign; v and w of the paper.
    """
    x = by - edge
    moved = jnp.exp(norm.logpdf(x) - norm.logcdf(x))
    return moved, moved * (moved + x)


def _truncate_to_interval(by: Array, edge: Array) -> tuple[Array, Array]:
    """Return the same if the variable is between -edge and edge.

    Probabilities are computed in the lower tail, where they are not rounded to 1.
    """
    low, high = -edge - jnp.abs(by), edge - jnp.abs(by)
    below, above = norm.logcdf(low), norm.logcdf(high)
    log_mass = above + jnp.log1p(-jnp.minimum(jnp.exp(below - above), 1 - jnp.finfo(jnp.float32).eps))
    at_low, at_high = jnp.exp(norm.logpdf(low) - log_mass), jnp.exp(norm.logpdf(high) - log_mass)
    moved = at_low - at_high
    return jnp.sign(by) * moved, moved**2 + high * at_high - low * at_low


@struct.dataclass
class MultidimensionalElo:
    """Multidimensional Elo: log-odds rating[i] - rating[j] plus cycles[i] x cycles[j], summed over all planes."""

    rating: Float[Array, " n"]  # log-odds
    cycles: Float[Array, "n planes 2"]
    cyclic_share: Float[Array, ""]  # fraction of the squared log-odds that ratings cannot explain

    @property
    def log_odds(self) -> Float[Array, "n n"]:
        """Return the log-odds of each player against each other, as the ratings and cycles predict them."""
        a, b = self.cycles[..., 0], self.cycles[..., 1]
        return self.rating[:, None] - self.rating + a @ b.T - b @ a.T


def fit_multidimensional_elo(log_odds: Float[Array, "n n"], planes: int = 1) -> MultidimensionalElo:
    """Fit ratings and cycles to antisymmetric log-odds of each row against each column (Balduzzi et al. 2018).

    arXiv:1806.02643. The rating is the mean over opponents. The remainder, its curl, is approximated by
    `planes` planes, the largest ones first. Raise OptionError if the log-odds are not finite or not
    antisymmetric; under jit, all results are NaN then.
    """
    log_odds = _require_antisymmetric("log_odds", log_odds)
    rating = log_odds.mean(1)
    rest = log_odds - (rating[:, None] - rating)
    cyclic = (rest**2).sum() / jnp.maximum((log_odds**2).sum(), MIN_PROBABILITY)
    found = []
    for _ in range(planes):
        u, s, v = jnp.linalg.svd(rest)
        plane = jnp.sqrt(s[0]) * jnp.stack([u[:, 0], v[0]], 1)
        found.append(plane)
        rest = rest - (plane[:, :1] * plane[:, 1] - plane[:, 1:] * plane[:, 0])
    return MultidimensionalElo(rating, jnp.stack(found, 1), cyclic)


def nash_averaging(payoffs: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return each player's payoff against an equilibrium of an antisymmetric table, and its weights.

    Balduzzi et al. 2018, arXiv:1806.02643. A duplicate of a player does not change the result, and the
    maximum payoff is 0. If there are several equilibria, the paper takes the one of maximum entropy; here it
    is one near their center. Raise OptionError if the table is not finite or not antisymmetric; under jit,
    all results are NaN then.
    """
    payoffs = _require_antisymmetric("payoffs", payoffs)
    weights, _ = Nash()(jnp.stack([payoffs, -payoffs]), jnp.ones((2, len(payoffs)), bool))
    weights = weights.mean(0)
    return payoffs @ weights, weights


def _require_antisymmetric(name: str, table: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return a table if it is antisymmetric up to 1e-4 of its largest cell, otherwise raise OptionError.

    Under jit, another table becomes NaN.
    """
    require_finite(name, table)
    apart, largest = jnp.abs(table + table.T), jnp.abs(table).max()
    fits = jnp.isfinite(largest) & (apart.max() <= CONSTANT_SUM_TOLERANCE * largest)
    if not isinstance(fits, Tracer) and not fits:
        i, j = jnp.unravel_index(apart.argmax(), apart.shape)
        cells = f"{name}[{i}, {j}]={table[i, j]:.4g}, {name}[{j}, {i}]={table[j, i]:.4g}"
        raise OptionError(f"{cells}: must sum to 0 (antisymmetric matrix)")
    return jnp.where(fits, table, jnp.nan)
