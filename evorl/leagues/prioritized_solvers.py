"""Meta-solvers that weight policies by wins and losses: prioritized fictitious self-play, and rectified Nash."""

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
    """Prioritized fictitious self-play (PFSP; Vinyals et al. 2019).

    A policy is weighted by the probability p with which the newest policies of the other players win against
    it. priority=hard gives it the weight (1 - p)^2, and priority=even the weight p (1 - p). If all weights
    are 0, all policies are equally likely.

    p is computed from the mean payoff of the other players: it is 1/2 for a payoff of 0, 1 for the largest
    absolute payoff of the table, and 0 for minus that payoff.

    Args:
        priority: "hard" or "even".

    Raises:
        OptionError: If `priority` is neither.
    """

    priority: str = "hard"

    def __post_init__(self) -> None:
        if self.priority not in PRIORITIES:
            raise unknown_name_error("priority", self.priority, PRIORITIES)

    def check(self, players: int, zero_sum: bool) -> None:
        """Accept every game."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        table, last = mask_payoffs(payoffs, mask), mask_newest_policies(mask).astype(jnp.float32)
        largest = jnp.abs(table).max()
        others = (table.sum(0) - table) / (len(mask) - 1)
        won = (1 + compute_deviation_payoffs(others, last) / jnp.where(largest > 0, largest, 1.0)) / 2
        weights = normalize_weights(PRIORITIES[self.priority](won), mask)
        return with_gap(payoffs, mask, weights)


@dataclass(frozen=True)
class RectifiedNash:
    """Rectified Nash: Nash weights, with new policies that respond to only some of them (Balduzzi et al. 2019).

    arXiv:1901.08106, algorithm 4. The new policy of a player responds to the weights of those opponents that
    the player's best policy beats or ties with. The best policy is the one with the largest weight. It beats
    or ties with the opponents against which it gets at least the value of the game.

    The paper improves each policy with a weight in every iteration; here a player gets one new policy per
    iteration. These responses need not lead to an equilibrium (McAleer et al. 2020).

    Args:
        nash: Solver of the Nash weights.
    """

    nash: Nash = field(default_factory=Nash)

    def check(self, players: int, zero_sum: bool) -> None:
        """Raise OptionError unless the game has two players and a constant sum.

        Args:
            players: Number of players.
            zero_sum: Whether the game has a constant sum.
        """
        self.nash.check(players, zero_sum)

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        return self.nash(payoffs, mask)

    def compute_opponent_mixtures(self, payoffs: Table, mask: Mask, weights: Weights) -> Weights:
        """Return the Nash weights of the policies that the other player's best policy beats or ties with.

        Args:
            payoffs: Payoff table, shape [players, capacity, capacity].
            mask: Mask of the policies that exist, shape [players, capacity].
            weights: Nash weights, shape [players, capacity].

        Returns:
            Mixtures of each player, to which the other player responds, shape [players, capacity].
        """
        table = center_payoffs(payoffs, mask)
        value = (weights * compute_deviation_payoffs(table, weights)).sum(1, keepdims=True)
        best = weights.argmax(1)
        gets = jnp.stack([table[0, best[0]], table[1, :, best[1]]])  # against each policy of the other player
        beaten = gets >= value - self.nash.tolerance * compute_payoff_range(payoffs, mask)
        left = jnp.where(beaten, weights[::-1], 0.0)[::-1]
        return normalize_weights(jnp.where(left.any(1, keepdims=True), left, weights), mask)
