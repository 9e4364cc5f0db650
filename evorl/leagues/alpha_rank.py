"""Alpha-rank: weights of profiles by the stationary distribution of an evolutionary process."""

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

INITIAL_EPSILON = 2.0**-20  # initial probability of a change by which the player loses
MIN_EPSILON = 2.0**-28
CONVERGENCE_TOLERANCE = 1e-6  # maximum change of a profile's weight at convergence
TIE_TOLERANCE = 1e-6  # payoffs that differ by less, relative to the payoff range, are equal
MAX_PROFILES = 6000


@dataclass(frozen=True)
class AlphaRank:
    """Alpha-rank: stationary distribution of a Markov chain over profiles (Omidshafiei et al. 2019).

    In each transition of the chain, one player may change its policy. Alpha is infinite: one of all such
    changes is drawn, and accepted with probability 1 - e if the player gains by it, 1/2 if its payoff stays
    the same, and e if it loses. The value of e starts at 2^-20 and is halved until the weights no longer
    change, or down to 2^-28. The weights of a player are the marginals of the weights of the profiles.
    """

    def check(self, players: int, zero_sum: bool) -> None:
        """Accept every game."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        of_profiles = self.compute_profile_weights(payoffs, mask)
        others = [tuple(j for j in range(len(mask)) if j != i) for i in range(len(mask))]
        weights = jnp.stack([of_profiles.sum(axes) for axes in others])
        return with_gap(payoffs, mask, weights)

    def compute_profile_weights(self, payoffs: Table, mask: Mask) -> Float[Array, "..."]:
        """Return the weight of each profile, shape [capacity, ..., capacity].

        Args:
            payoffs: Payoff table, shape [players, capacity, ..., capacity].
            mask: Mask of the policies that exist, shape [players, capacity].

        Raises:
            OptionError: If the table has more than 6,000 profiles.
        """
        require(
            num_profiles(mask) <= MAX_PROFILES,
            "capacity",
            mask.shape[1],
            f"AlphaRank supports at most {MAX_PROFILES} profiles",
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
    """Return the transitions by which a player gains, and those by which a player loses, each of shape [n, n].

    A row is the current profile, and a column the next one, which differs from it in one policy. Entries are
    1, or 1/2 in both results if the payoff stays the same. The common factor, the probability that a change
    is drawn, is omitted because it does not change the stationary distribution.
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
