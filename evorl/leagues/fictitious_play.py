"""Fictitious play and regret matching on a payoff table; the weights are averages over all steps."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from evorl.errors import require_int
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


@dataclass(frozen=True)
class FictitiousPlay:
    """Fictitious play with simultaneous updates (Brown 1951).

    In each step, every player best responds to the average of the other players' earlier strategies. The
    averages start at uniform mixtures. Among equally good responses, the oldest policy is taken.

    Args:
        steps: Number of steps.
    """

    steps: int = 2000

    def __post_init__(self) -> None:
        require_int("steps", self.steps)

    def check(self, players: int, zero_sum: bool) -> None:
        """Accept every game, although the averages need not converge beyond two-player zero-sum games."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        table, even = center_payoffs(payoffs, mask), normalize_weights(jnp.ones(mask.shape), mask)

        def step(i: jax.Array, average: Weights) -> Weights:
            best = jnp.where(mask, compute_deviation_payoffs(table, average), -jnp.inf).argmax(1)
            return average + (jax.nn.one_hot(best, mask.shape[1]) - average) / (i + 2)

        weights = jax.lax.fori_loop(0, self.steps, step, even)
        return with_gap(payoffs, mask, weights)


@dataclass(frozen=True)
class RegretMatching:
    """Regret matching (Hart and Mas-Colell 2000).

    In each step, every player plays its policies in proportion to their positive cumulative regrets. The
    weights are the averages of these strategies.

    Args:
        steps: Number of steps.
    """

    steps: int = 10_000

    def __post_init__(self) -> None:
        require_int("steps", self.steps)

    def check(self, players: int, zero_sum: bool) -> None:
        """Accept every game, although the averages need not converge beyond two-player zero-sum games."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        table = center_payoffs(payoffs, mask)

        def step(i: jax.Array, carry: tuple[Weights, Weights]) -> tuple[Weights, Weights]:
            regret, average = carry
            played = normalize_weights(jnp.maximum(regret, 0), mask)
            each = compute_deviation_payoffs(table, played)
            regret += jnp.where(mask, each - (each * played).sum(1, keepdims=True), 0.0)
            return regret, average + (played - average) / (i + 1)

        zeros = jnp.zeros(mask.shape)
        weights = jax.lax.fori_loop(0, self.steps, step, (zeros, zeros))[1]
        return with_gap(payoffs, mask, weights)
