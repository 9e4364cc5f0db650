"""Ratings: players by numbers, from how often they win against each other."""

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

ELO_SCALE = 400 / math.log(10)  # of Elo: points that make the odds e to 1
NEWTON_STEPS, MAX_STEP = 50, 2.0  # of Newton's method, the latter in units of ELO_SCALE
MIN_PROBABILITY = 1e-12  # a probability


@struct.dataclass
class EloRatings:
    """Ratings whose mean is 0, and their standard errors."""

    rating: Float[Array, " n"]
    standard_error: Float[Array, " n"]


def fit_elo(won: Float[Array, "n n"], prior: float = 4000.0) -> EloRatings:
    """Ratings by maximum likelihood of how often each (row) has won against each (column), a draw as half of a win.

    A weak Gaussian prior of that many points keeps finite who has always won, or lost, and leaves players who have no
    opponent in common where they are, with an error of about its size. Errors are of the distance from the mean.

    Raises OptionError where a cell beside the diagonal is not finite; under jit all ratings are NaN then.
    """
    n, precision = len(won), (ELO_SCALE / prior) ** 2
    won = jnp.where(jnp.eye(n, dtype=bool), 0.0, won)
    require_finite("won", won)
    games = won + won.T
    centred = jnp.eye(n) - 1 / n

    def information(x: Float[Array, " n"]) -> Float[Array, "n n"]:
        p = jax.nn.sigmoid(x[:, None] - x)
        each = games * p * (1 - p)
        return jnp.diag(each.sum(1) + precision) - each

    def step(_: Int[Array, ""], x: Float[Array, " n"]) -> Float[Array, " n"]:
        slope = (won - games * jax.nn.sigmoid(x[:, None] - x)).sum(1) - precision * x
        change = jnp.linalg.solve(information(x), slope)
        return centred @ (x + change * jnp.minimum(1.0, MAX_STEP / jnp.maximum(jnp.abs(change).max(), MIN_PROBABILITY)))

    x = jax.lax.fori_loop(0, NEWTON_STEPS, step, jnp.zeros(n))
    covariance = centred @ jnp.linalg.inv(information(x)) @ centred
    return EloRatings(ELO_SCALE * x, ELO_SCALE * jnp.sqrt(jnp.diagonal(covariance)))


@struct.dataclass
class Skills:
    """A normal distribution of each player's skill."""

    mean: Float[Array, " n"]
    std: Float[Array, " n"]

    @classmethod
    def from_prior(cls, n: int, mean: float = 25.0, std: float = 25 / 3) -> "Skills":
        """Of players of whom nothing is known."""
        return cls(jnp.full(n, mean), jnp.full(n, std))


def update_trueskill(
    skills: Skills,
    players: Int[Array, "games 2"],
    drawn: Bool[Array, " games"],
    noise: float = 25 / 6,
    margin: float = 0.74,
) -> Skills:
    """Skills after games in their order, of which the first player has won where it was no draw.

    TrueSkill for two (Herbrich et al. 2006): each plays by its skill and noise, it is a draw where they are within a
    margin, and what is known of both is matched by mean and variance.

    Raises OptionError where a skill is not finite; under jit those that it meets are NaN too.
    """
    require_finite("skills.mean", skills.mean)
    require_finite("skills.std", skills.std)

    def update_match(now: Skills, result: tuple[Array, Array]) -> tuple[Skills, None]:
        who, draw = result
        mean, variance = now.mean[who], now.std[who] ** 2
        spread = jnp.sqrt(2 * noise**2 + variance.sum())
        by, e = (mean[0] - mean[1]) / spread, margin / spread
        lowest, highest = jnp.where(draw, -e, e) - by, jnp.where(draw, e - by, jnp.inf)
        mass = jnp.maximum(norm.cdf(-lowest) - norm.cdf(-highest), MIN_PROBABILITY)
        at_low, at_high = norm.pdf(lowest), norm.pdf(highest)
        moved = (at_low - at_high) / mass
        edge = jnp.where(draw, highest * at_high, 0.0)
        shrunk = moved**2 + (edge - lowest * at_low) / mass
        mean += jnp.array([1.0, -1.0]) * variance / spread * moved
        variance *= jnp.maximum(1 - variance / spread**2 * shrunk, MIN_PROBABILITY)
        return Skills(now.mean.at[who].set(mean), now.std.at[who].set(jnp.sqrt(variance))), None

    return jax.lax.scan(update_match, skills, (players, drawn))[0]


@struct.dataclass
class MultidimensionalElo:
    """Log-odds as rating[i] - rating[j] plus planes in which players go round: cycles[i] x cycles[j], added up."""

    rating: Float[Array, " n"]  # log-odds
    cycles: Float[Array, "n planes 2"]
    cyclic_share: Float[Array, ""]  # the share of the squared log-odds that no rating tells

    @property
    def log_odds(self) -> Float[Array, "n n"]:
        """Of each against each, as they are told by these."""
        a, b = self.cycles[..., 0], self.cycles[..., 1]
        return self.rating[:, None] - self.rating + a @ b.T - b @ a.T


def fit_multidimensional_elo(log_odds: Float[Array, "n n"], planes: int = 1) -> MultidimensionalElo:
    """Elo and cycles of antisymmetric log-odds of each (row) against each (Balduzzi et al. 2018, arXiv:1806.02643).

    The rating is the mean over opponents; what it leaves, its curl, is told by as many planes as are given, the largest
    first. Raises OptionError where they are not finite or not antisymmetric; under jit all is NaN then.
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
    """What each earns against an equilibrium of an antisymmetric table, and the weights of that equilibrium.

    Balduzzi et al. 2018, arXiv:1806.02643: who is there twice counts once, and 0 is the most. Where there are several
    equilibria theirs is the one of the highest entropy, here that near the centre. Raises OptionError where the table
    is not finite or not antisymmetric; under jit all is NaN then.
    """
    payoffs = _require_antisymmetric("payoffs", payoffs)
    weights, _ = Nash()(jnp.stack([payoffs, -payoffs]), jnp.ones((2, len(payoffs)), bool))
    weights = weights.mean(0)
    return payoffs @ weights, weights


def _require_antisymmetric(name: str, table: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return a table that is antisymmetric up to 1e-4 of its largest cell, one of NaN for another that is traced."""
    require_finite(name, table)
    apart, largest = jnp.abs(table + table.T), jnp.abs(table).max()
    fits = jnp.isfinite(largest) & (apart.max() <= CONSTANT_SUM_TOLERANCE * largest)
    if not isinstance(fits, Tracer) and not fits:
        i, j = jnp.unravel_index(apart.argmax(), apart.shape)
        cells = f"{name}[{i}, {j}]={table[i, j]:.4g}, {name}[{j}, {i}]={table[j, i]:.4g}"
        raise OptionError(f"{cells}: must add up to 0, what one wins the other loses")
    return jnp.where(fits, table, jnp.nan)
