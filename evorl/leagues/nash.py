"""Nash equilibria of two-player constant-sum tables."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from evorl.errors import OptionError
from evorl.leagues.meta_games import (
    Gap,
    Mask,
    Table,
    Weights,
    center_payoffs,
    compute_payoff_range,
    is_constant_sum,
    with_gap,
)

BOUNDARY_FRACTION = 0.95  # fraction of the distance to the boundary that a step covers
MIN_SLACK = 1e-10  # lower bound of weights and slacks


@dataclass(frozen=True)
class Nash:
    """Nash equilibrium of a two-player constant-sum table, by an interior-point method (Mehrotra 1992).

    If there are several equilibria, the result is near the center of all of them, with the largest support.
    The method ends when the payoffs that the two players can guarantee themselves differ by at most
    `tolerance`, or after `steps` steps, and returns the best mixtures found. Other games raise OptionError;
    under jit, where no error can be raised, their weights and gap are NaN.

    Args:
        tolerance: Maximum difference between the guaranteed payoffs, relative to the range of the payoffs.
        steps: Maximum number of steps.
    """

    tolerance: float = 1e-5
    steps: int = 50

    def check(self, players: int, zero_sum: bool) -> None:
        """Raise OptionError unless the game has two players and a constant sum.

        Args:
            players: Number of players.
            zero_sum: Whether the game has a constant sum.
        """
        given = f"{players} players" if players != 2 else "a general-sum game"
        if players != 2 or not zero_sum:
            allowed = "use AutoSolver, ProjectedReplicator or AlphaRank"
            raise OptionError(f"solver=Nash: solves two-player zero-sum games, not {given}; {allowed}")

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        constant = is_constant_sum(payoffs, mask)
        self.check(len(mask), isinstance(constant, Tracer) or bool(constant))
        scale = compute_payoff_range(payoffs, mask)
        scaled = center_payoffs(payoffs, mask)[0] / jnp.where(scale > 0, scale, 1.0)
        weights = _solve_interior_point(scaled, mask, self.tolerance, self.steps)
        weights, lacks = with_gap(payoffs, mask, weights)
        return jnp.where(constant, weights, jnp.nan), jnp.where(constant, lacks, jnp.nan)


def _solve_interior_point(a: Float[Array, "k k"], mask: Mask, tolerance: float, steps: int) -> Weights:
    """Return the mixtures z = (x, y) of max min x A y.

    They are found along a path on which z s = mu for all policies, with mu to 0. s = (u - A y, A' x - v) is
    how much worse each policy is than the bounds u and v. Policies that do not exist have z = 0 and s = 1,
    and change nothing.
    """
    k, count, there = len(a), mask.sum(), mask.reshape(-1)

    def compute_slacks(z: Array, bounds: Array) -> Array:
        s = jnp.concatenate([bounds[0] - a @ z[k:], a.T @ z[:k] - bounds[1]])
        return jnp.where(there, jnp.maximum(s, MIN_SLACK), 1.0)

    def compute_security_levels(z: Array) -> Array:
        """Return the maximum payoff that y leaves to x, and the minimum payoff that x leaves to y."""
        most = jnp.where(mask[0], a @ z[k:], -jnp.inf).max()
        return jnp.stack([most, jnp.where(mask[1], a.T @ z[:k], jnp.inf).min()])

    def step(carry: Any) -> Any:
        i, z, bounds, best, least = carry
        s = compute_slacks(z, bounds)
        mu = (z * s).sum() / count
        # Newton step in w = dz / d, with d^2 = z / s:
        # (I + skew) w + d (1' du, -1' dv) = target / sqrt(z s), and d w sums to 0
        d = jnp.sqrt(z / s)
        coupled = d[:k, None] * a * d[k:]
        side = jnp.zeros((2 * k, 2)).at[:k, 0].set(d[:k]).at[k:, 1].set(-d[k:])
        inner = jnp.eye(2 * k).at[:k, k:].set(-coupled).at[k:, :k].set(coupled.T)
        factors = jax.scipy.linalg.lu_factor(inner)

        def solve_newton_step(target: Array) -> tuple[Array, Array, Array, Array]:
            right = jnp.where(there, target / jnp.sqrt(jnp.where(there, z * s, 1.0)), 0.0)
            solved = jax.scipy.linalg.lu_solve(factors, jnp.concatenate([side, right[:, None]], 1))
            sums = side.T @ solved
            dbounds = jnp.linalg.solve(sums[:, :2], sums[:, 2])
            dz = d * (solved[:, 2] - solved[:, :2] @ dbounds)
            ds = jnp.concatenate([dbounds[0] - a @ dz[k:], a.T @ dz[:k] - dbounds[1]])
            falls = jnp.where(there, jnp.maximum(-dz / jnp.where(there, z, 1.0), -ds / s), 0.0)
            return dz, ds, dbounds, jnp.minimum(1.0, BOUNDARY_FRACTION / jnp.maximum(falls.max(), MIN_SLACK))

        dz, ds, dbounds, far = solve_newton_step(-z * s)
        left = jnp.where(there, (z + far * dz) * (s + far * ds), 0.0).sum() / count
        aim = jnp.clip(left / mu, 0.1, 1.0) ** 3 * mu
        dz, _, dbounds, far = solve_newton_step(aim - z * s - dz * ds)
        z = jnp.where(there, jnp.maximum(z + far * dz, MIN_SLACK), 0.0).reshape(2, k)
        z, bounds = (z / z.sum(1, keepdims=True)).reshape(-1), bounds + far * dbounds
        now = compute_security_levels(z)
        apart = now[0] - now[1]
        best = jnp.where(apart < least, z, best)
        return i + 1, z, bounds, best, jnp.minimum(least, apart)

    z = (mask / mask.sum(1, keepdims=True)).reshape(-1)
    now = compute_security_levels(z)
    start = jnp.int32(0), z, now + jnp.array([1.0, -1.0]), z, now[0] - now[1]
    unfinished = lambda carry: (carry[0] < steps) & (carry[-1] > tolerance)  # noqa: E731
    return jax.lax.while_loop(unfinished, step, start)[3].reshape(2, k)
