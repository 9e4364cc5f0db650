"""Meta-game, in which players choose among their policies: payoffs of mixtures, and gains by deviating from them."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from evorl.errors import OptionError, require
from evorl.types import Key

Table: TypeAlias = Float[Array, "players ..."]  # payoffs of each profile, [players, capacity, ..., capacity]
Mask: TypeAlias = Bool[Array, "players capacity"]  # whether each policy exists
Weights: TypeAlias = Float[Array, "players capacity"]  # mixture of each player, 0 for policies that do not exist
Gap: TypeAlias = Float[Array, ""]  # maximum gain of a player by deviating from its mixture to a single policy

CONSTANT_SUM_TOLERANCE = 1e-4  # allowed difference of the sums of a constant-sum table, relative to the payoff range


def compute_profile_mask(mask: Mask | Sequence[Bool[Array, " _"]]) -> Bool[Array, "..."]:
    """Return a mask of the profiles whose policies all exist, shape [capacity, ..., capacity]."""
    return jnp.stack(jnp.meshgrid(*mask, indexing="ij")).all(0)


def mask_payoffs(payoffs: Table, mask: Mask) -> Table:
    """Return the payoffs, with 0 in profiles that contain a policy that does not exist.

    Raise OptionError if the shape is not [players, capacity, ...] or, outside of jit, if a cell is not
    finite.
    """
    wanted = (len(mask), *[mask.shape[1]] * len(mask))
    require(payoffs.shape == wanted, "payoffs", f"{list(payoffs.shape)}", f"must be {list(wanted)}")
    table = jnp.where(compute_profile_mask(mask), payoffs, 0.0)
    require_finite("payoffs", table)
    return table


def center_payoffs(payoffs: Table, mask: Mask) -> Table:
    """Subtract the center of each player's payoff range.

    This changes no equilibrium and preserves the precision of float32.
    """
    table = mask_payoffs(payoffs, mask)
    low, high = compute_payoff_bounds(table, mask)
    middle = low + (high - low) / 2
    return jnp.where(compute_profile_mask(mask), table - middle.reshape(-1, *[1] * len(mask)), 0.0)


def compute_payoff_bounds(payoffs: Table, mask: Mask) -> tuple[Float[Array, " players"], Float[Array, " players"]]:
    """Return the minimum and the maximum payoff of each player, each of shape [players]."""
    there, axes = compute_profile_mask(mask), tuple(range(1, 1 + len(mask)))
    return jnp.where(there, payoffs, jnp.inf).min(axes), jnp.where(there, payoffs, -jnp.inf).max(axes)


def compute_payoff_range(payoffs: Table, mask: Mask) -> Float[Array, ""]:
    """Return the largest payoff range (maximum minus minimum) of any player."""
    low, high = compute_payoff_bounds(payoffs, mask)
    return (high - low).max()


def is_constant_sum(payoffs: Table, mask: Mask) -> Bool[Array, ""]:
    """Return whether the players' payoffs have the same sum in all profiles, up to rounding.

    If so, the game is equivalent to a zero-sum game. Sums may differ by 1e-4 of the payoff range, and by the
    float32 rounding of the payoffs themselves.
    """
    table = mask_payoffs(payoffs, mask)
    total = jnp.broadcast_to(center_payoffs(payoffs, mask).sum(0), table.shape)
    rounding = 2 * len(mask) * jnp.finfo(jnp.float32).eps * jnp.abs(table).max()
    return compute_payoff_range(total, mask) <= CONSTANT_SUM_TOLERANCE * compute_payoff_range(table, mask) + rounding


def require_finite(name: str, cells: Float[Array, "..."]) -> None:
    """Raise OptionError that names the first cell that is NaN or infinite; do nothing under jit."""
    if isinstance(cells, Tracer):
        return
    for place in np.argwhere(~np.isfinite(cells))[:1]:
        value = np.asarray(cells)[tuple(place)]
        raise OptionError(f"{name}[{', '.join(map(str, place))}]={value}: must be finite")


def compute_deviation_payoffs(payoffs: Table, weights: Weights) -> Weights:
    """Return the payoff of each policy of each player against the mixtures of all other players."""
    found = []
    for player in range(len(weights)):
        left = payoffs[player]
        for other in reversed(range(len(weights))):
            if other != player:
                left = jnp.tensordot(left, weights[other], axes=(other, 0))
        found.append(left)
    return jnp.stack(found)


def compute_deviation_gains(
    payoffs: Table,
    mask: Mask,
    weights: Weights,
) -> Float[Array, " players"]:
    """Return the maximum gain of each player by deviating from its mixture to a single policy, at least 0."""
    each = compute_deviation_payoffs(center_payoffs(payoffs, mask), weights)
    best = jnp.where(mask, each, -jnp.inf).max(1)
    return jnp.maximum(best - (each * weights).sum(1), 0.0)


def compute_gap(
    payoffs: Table,
    mask: Mask,
    weights: Weights,
) -> Gap:
    """Return the maximum gain of any player by deviating from its mixture to a single policy."""
    return compute_deviation_gains(payoffs, mask, weights).max()


def with_gap(payoffs: Table, mask: Mask, weights: Weights) -> tuple[Weights, Gap]:
    """Return the weights of a solver with their gap; both are NaN if a payoff is not finite."""
    lacks = compute_gap(payoffs, mask, weights)
    return jnp.where(jnp.isfinite(lacks), weights, jnp.nan), lacks


def normalize_weights(weights: Weights, mask: Mask) -> Weights:
    """Normalize nonnegative weights to mixtures of the policies that exist; all-zero weights become uniform."""
    weights = jnp.where(mask, weights, 0.0)
    total = weights.sum(1, keepdims=True)
    return jnp.where(total > 0, weights, mask) / jnp.where(total > 0, total, mask.sum(1, keepdims=True))


def sample_policies(key: Key, weights: Weights) -> Int[Array, " players"]:
    """Sample a policy of each player from its mixture, with one random number per player."""
    upto = weights.cumsum(1)
    numbers = 1 - jax.random.uniform(key, (len(weights), 1))  # above 0, so that no policy of weight 0 is sampled
    return (upto < numbers * upto[:, -1:]).sum(1, dtype=jnp.int32)


def num_profiles(mask: Mask) -> int:
    """Return the number of profiles of a table, filled or not."""
    return math.prod([mask.shape[1]] * len(mask))
