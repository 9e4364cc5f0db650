"""Replicator dynamics on a payoff table: the weight of a policy grows with its payoff advantage over the mixture."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from evorl.errors import require, require_int
from evorl.leagues.meta_games import (
    Gap,
    Mask,
    Table,
    Weights,
    center_payoffs,
    compute_deviation_payoffs,
    normalize_weights,
    with_gap,
)

PROJECTION_STEPS = 4  # Newton steps, enough to project mixtures with a few low weights


@dataclass(frozen=True)
class Replicator:
    """Replicator dynamics (Taylor and Jonker 1978): the average mixture over a path that starts at uniform mixtures.

    Args:
        dt: Size of a step, in units of 1 / payoff.
        steps: Number of steps.
    """

    dt: float = 1e-3
    steps: int = 50_000

    def __post_init__(self) -> None:
        require(self.dt > 0, "dt", self.dt, "must be above 0")
        require_int("steps", self.steps)

    def check(self, players: int, zero_sum: bool) -> None:
        """Accept every game, although the averages need not converge beyond two-player zero-sum games."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        weights = _average_trajectory(center_payoffs(payoffs, mask), mask, self.dt, self.steps, 0.0)
        return with_gap(payoffs, mask, weights)


@dataclass(frozen=True)
class ProjectedReplicator:
    """Replicator dynamics in which each step is projected to mixtures with a minimum weight (Lanctot et al. 2017).

    arXiv:1711.00832.

    Args:
        dt: Size of a step, in units of 1 / payoff.
        floor: Minimum weight of a policy.
        steps: Number of steps.
    """

    dt: float = 1e-3
    floor: float = 1e-10
    steps: int = 50_000

    def __post_init__(self) -> None:
        require(self.dt > 0, "dt", self.dt, "must be above 0")
        require(0 <= self.floor < 1, "floor", self.floor, "must be at least 0 and below 1")
        require_int("steps", self.steps)

    def check(self, players: int, zero_sum: bool) -> None:
        """Accept every game, although the averages need not converge beyond two-player zero-sum games."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        require(self.floor * mask.shape[1] <= 1, "floor", self.floor, f"must be at most 1 / {mask.shape[1]} policies")
        weights = _average_trajectory(center_payoffs(payoffs, mask), mask, self.dt, self.steps, self.floor)
        return with_gap(payoffs, mask, weights)


def _average_trajectory(table: Table, mask: Mask, dt: float, steps: int, floor: float) -> Weights:
    """Return the average of the initial mixtures and of those after each step."""

    def step(i: jax.Array, carry: tuple[Weights, ...]) -> tuple[Weights, ...]:
        now, lost, total, lost_of_total = carry
        each = compute_deviation_payoffs(table, now)
        mean = (each * now).sum(1, keepdims=True) / now.sum(1, keepdims=True)
        change = _project_change(now, dt * now * (each - mean), mask, floor)
        return *_add_compensated(now, lost, change), *_add_compensated(total, lost_of_total, now)

    even, zeros = normalize_weights(jnp.ones(mask.shape), mask), jnp.zeros(mask.shape)
    last, _, total, _ = jax.lax.fori_loop(0, steps, step, (even, zeros, zeros, zeros))
    return normalize_weights(total + last, mask)


def _project_change(weights: Weights, change: Weights, mask: Mask, floor: float) -> Weights:
    """Return the change to the nearest mixtures in which no weight is below `floor`.

    A weight w becomes max(w - x, floor), where x compensates for the weights that are raised to `floor`.
    """
    x = jnp.zeros((len(mask), 1))
    low = jnp.zeros_like(mask)
    for _ in range(PROJECTION_STEPS):
        low = mask & (weights + change - x < floor)
        lifted = jnp.where(low, floor - weights - change, 0.0).sum(1, keepdims=True)
        x = lifted / (mask & ~low).sum(1, keepdims=True)
    return jnp.where(low, floor - weights, jnp.where(mask, change - x, 0.0))


def _add_compensated(total: Weights, lost: Weights, more: Weights) -> tuple[Weights, Weights]:
    """Return a sum and its rounding error (Kahan 1965), so that small changes accumulate."""
    more -= lost
    new = total + more
    return new, (new - total) - more
