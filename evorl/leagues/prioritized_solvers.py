"""Weights by who beats whom: prioritized fictitious self-play, and rectified Nash."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax.numpy as jnp
from jaxtyping import Array

from evorl.errors import unknown_name_error
from evorl.leagues.meta_games import (
    Gap,
    Mask,
    Table,
    Weights,
    center_payoffs,
    compute_deviation_payoffs,
    compute_payoff_range,
    mask_payoffs,
    normalize_weights,
    with_gap,
)
from evorl.leagues.nash import Nash
from evorl.leagues.solvers import mask_newest_policies

PRIORITIES: Mapping[str, Callable[[Array], Array]] = {"hard": lambda p: (1 - p) ** 2, "even": lambda p: p * (1 - p)}


@dataclass(frozen=True)
class PFSP:
    """Policies by how often the newest ones of the others win against them, p (Vinyals et al. 2019).

    priority=hard weighs them by (1 - p)^2, priority=even by p (1 - p); where all weights are 0 all are alike. Payoffs
    are taken for odds: p is 1/2 where the others' mean payoff is 0, and 0 or 1 where it is the table's largest.
    """

    priority: str = "hard"

    def __post_init__(self) -> None:
        if self.priority not in PRIORITIES:
            raise unknown_name_error("priority", self.priority, PRIORITIES)

    def check(self, players: int, zero_sum: bool) -> None:
        """Solves all."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        table, last = mask_payoffs(payoffs, mask), mask_newest_policies(mask).astype(jnp.float32)
        largest = jnp.abs(table).max()
        others = (table.sum(0) - table) / (len(mask) - 1)
        won = (1 + compute_deviation_payoffs(others, last) / jnp.where(largest > 0, largest, 1.0)) / 2
        weights = normalize_weights(PRIORITIES[self.priority](won), mask)
        return with_gap(payoffs, mask, weights)


@dataclass(frozen=True)
class RectifiedNash:
    """The weights of Nash, of which a new policy answers those alone that its player's best one beats or ties with.

    Balduzzi et al. 2019, arXiv:1901.08106, algorithm 4, which in an iteration improves each policy with weight. Here a
    player has one new policy an iteration: the best one is that with the most weight, and it beats or ties with those
    from which it gets the value of the game. Such answers need not come to an equilibrium (McAleer et al. 2020).
    """

    nash: Nash = field(default_factory=Nash)

    def check(self, players: int, zero_sum: bool) -> None:
        """Raises OptionError beyond two players and constant sums."""
        self.nash.check(players, zero_sum)

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        return self.nash(payoffs, mask)

    def compute_opponent_mixtures(self, payoffs: Table, mask: Mask, weights: Weights) -> Weights:
        table = center_payoffs(payoffs, mask)
        value = (weights * compute_deviation_payoffs(table, weights)).sum(1, keepdims=True)
        best = weights.argmax(1)
        gets = jnp.stack([table[0, best[0]], table[1, :, best[1]]])  # from each of the other's
        beaten = gets >= value - self.nash.tolerance * compute_payoff_range(payoffs, mask)
        left = jnp.where(beaten, weights[::-1], 0.0)[::-1]
        return normalize_weights(jnp.where(left.any(1, keepdims=True), left, weights), mask)
