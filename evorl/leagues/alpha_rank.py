"""alpha-rank: profiles by how often evolution is there."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import require
from evorl.leagues.meta_games import (
    Gap,
    Mask,
    Table,
    Weights,
    center_payoffs,
    compute_payoff_range,
    compute_profile_mask,
    num_profiles,
    with_gap,
)
from evorl.leagues.stationary_distribution import compute_stationary_distribution

INITIAL_EPSILON = 2.0**-20  # the first chance of a move by which the mover loses
MIN_EPSILON = 2.0**-28
CONVERGENCE_TOLERANCE = 1e-6  # the most by which a profile's weight moves where it stands still
TIE_TOLERANCE = 1e-6  # of the payoffs' range, below which payoffs are the same
MAX_PROFILES = 6000  # profiles


@dataclass(frozen=True)
class AlphaRank:
    """How often a chain is at each profile in which one player at a time changes its policy (Omidshafiei et al. 2019).

    Infinite alpha: of all such changes one is drawn, taken with probability 1 - e where the mover gains, 1/2 at a tie,
    else e, which is halved until the weights stand still. A player's weights are its marginals.
    """

    def check(self, players: int, zero_sum: bool) -> None:
        """Solves all."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        of_profiles = self.compute_profile_weights(payoffs, mask)
        others = [tuple(j for j in range(len(mask)) if j != i) for i in range(len(mask))]
        weights = jnp.stack([of_profiles.sum(axes) for axes in others])
        return with_gap(payoffs, mask, weights)

    def compute_profile_weights(self, payoffs: Table, mask: Mask) -> Float[Array, "..."]:
        """The weight of each profile, [capacity, ..., capacity]; raises OptionError above 6,000 of them."""
        require(
            num_profiles(mask) <= MAX_PROFILES,
            "capacity",
            mask.shape[1],
            f"AlphaRank has at most {MAX_PROFILES} profiles",
        )
        table, there = center_payoffs(payoffs, mask), compute_profile_mask(mask)
        gained, lost = _build_transitions(table, TIE_TOLERANCE * compute_payoff_range(payoffs, mask))

        def halve_epsilon(carry: Any) -> Any:
            e, before, _ = carry
            now = compute_stationary_distribution((1 - e) * gained + e * lost, there.reshape(-1))
            return e / 2, now, jnp.abs(now - before).max()

        moving = lambda carry: (carry[0] >= MIN_EPSILON) & (carry[2] > CONVERGENCE_TOLERANCE)  # noqa: E731
        first = jnp.float32(INITIAL_EPSILON), jnp.zeros(there.size), jnp.float32(jnp.inf)
        return jax.lax.while_loop(moving, halve_epsilon, first)[1].reshape(there.shape)


def _build_transitions(table: Table, tie: Float[Array, ""]) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """From each profile (row) to each that differs in one policy: 1 where its player gains and where it loses, or 1/2s.

    What all have in common, that one of so many changes is drawn, does not matter to the weights.
    """
    players, k = len(table), table.shape[1]
    stays = jnp.eye(k)
    gained, lost = jnp.zeros((2, *[k] * 2 * players))
    for player in range(players):
        gain = jnp.expand_dims(jnp.moveaxis(table[player], player, -1), player) - table[player][..., None]
        others = [j for j in range(players) if j != player]
        ties = 0.5 * (jnp.abs(gain) <= tie)
        changes = [jnp.where(ties > 0, ties, gain > 0), jnp.where(ties > 0, ties, gain < 0)]
        changes = [jnp.expand_dims(x, [players + j for j in others]) for x in changes]
        for j in others:
            axes = [i for i in range(2 * players) if i not in (j, players + j)]
            changes = [x * jnp.expand_dims(stays, axes) for x in changes]
        gained, lost = gained + changes[0], lost + changes[1]
    return gained.reshape(k**players, -1), lost.reshape(k**players, -1)
