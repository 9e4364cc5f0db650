"""A meta-game: players choose among the policies that they have; what mixtures of them pay, and lack."""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from evorl.errors import OptionError, require
from evorl.types import Key

Table: TypeAlias = Float[Array, "players ..."]  # [players, capacity, ..., capacity], what a profile pays each player
Mask: TypeAlias = Bool[Array, "players capacity"]  # which policies are there
Weights: TypeAlias = Float[Array, "players capacity"]  # each player's mixture, 0 where no policy is
Gap: TypeAlias = Float[Array, ""]  # the most that a player gains by a policy instead of its mixture

CONSTANT_SUM_TOLERANCE = 1e-4  # of the payoffs' range, by which the sums of a constant-sum table may differ


def compute_profile_mask(mask: Mask) -> Bool[Array, "..."]:
    """Which profiles are of policies that are there, [capacity, ..., capacity]."""
    return jnp.stack(jnp.meshgrid(*mask, indexing="ij")).all(0)


def mask_payoffs(payoffs: Table, mask: Mask) -> Table:
    """Payoffs, 0 where a policy is not there.

    Raises OptionError where they are not [players, capacity, ...] and, outside of jit, where a cell is not finite.
    """
    wanted = (len(mask), *[mask.shape[1]] * len(mask))
    require(payoffs.shape == wanted, "payoffs", f"{list(payoffs.shape)}", f"must be {list(wanted)}")
    table = jnp.where(compute_profile_mask(mask), payoffs, 0.0)
    require_finite("payoffs", table)
    return table


def center_payoffs(payoffs: Table, mask: Mask) -> Table:
    """Payoffs less the middle of each player's range, which changes no equilibrium and keeps float32's precision."""
    table = mask_payoffs(payoffs, mask)
    low, high = compute_payoff_bounds(table, mask)
    middle = low + (high - low) / 2
    return jnp.where(compute_profile_mask(mask), table - middle.reshape(-1, *[1] * len(mask)), 0.0)


def compute_payoff_bounds(payoffs: Table, mask: Mask) -> tuple[Float[Array, " players"], Float[Array, " players"]]:
    """The least and the most that each player gets."""
    there, axes = compute_profile_mask(mask), tuple(range(1, 1 + len(mask)))
    return jnp.where(there, payoffs, jnp.inf).min(axes), jnp.where(there, payoffs, -jnp.inf).max(axes)


def compute_payoff_range(payoffs: Table, mask: Mask) -> Float[Array, ""]:
    """The payoffs' range: the most less the least that a player gets, of the player of whom that is largest."""
    low, high = compute_payoff_bounds(payoffs, mask)
    return (high - low).max()


def is_constant_sum(payoffs: Table, mask: Mask) -> Bool[Array, ""]:
    """Whether what all players get together is the same in all profiles, up to rounding: then it is as a zero-sum game.

    Sums may differ by 1e-4 of the payoffs' range, and by float32's rounding of the payoffs themselves.
    """
    table = mask_payoffs(payoffs, mask)
    total = jnp.broadcast_to(center_payoffs(payoffs, mask).sum(0), table.shape)
    rounding = 2 * len(mask) * jnp.finfo(jnp.float32).eps * jnp.abs(table).max()
    return compute_payoff_range(total, mask) <= CONSTANT_SUM_TOLERANCE * compute_payoff_range(table, mask) + rounding


def require_finite(name: str, cells: Float[Array, "..."]) -> None:
    """Raises OptionError that names the first cell that is NaN or infinite; does nothing under jit."""
    if isinstance(cells, Tracer):
        return
    for place in np.argwhere(~np.isfinite(cells))[:1]:
        value = np.asarray(cells)[tuple(place)]
        raise OptionError(f"{name}[{', '.join(map(str, place))}]={value}: must be finite")


def compute_deviation_payoffs(payoffs: Table, weights: Weights) -> Weights:
    """What each policy of each player gets against the mixtures of all others."""
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
    """The most that each player gains by a policy instead of its mixture, never less than 0."""
    each = compute_deviation_payoffs(center_payoffs(payoffs, mask), weights)
    best = jnp.where(mask, each, -jnp.inf).max(1)
    return jnp.maximum(best - (each * weights).sum(1), 0.0)


def compute_gap(
    payoffs: Table,
    mask: Mask,
    weights: Weights,
) -> Gap:
    """The most that any player gains by a policy instead of its mixture."""
    return compute_deviation_gains(payoffs, mask, weights).max()


def with_gap(payoffs: Table, mask: Mask, weights: Weights) -> tuple[Weights, Gap]:
    """A solver's weights and their gap, all NaN where a payoff is not finite, since what it pays is not known."""
    lacks = compute_gap(payoffs, mask, weights)
    return jnp.where(jnp.isfinite(lacks), weights, jnp.nan), lacks


def normalize_weights(weights: Weights, mask: Mask) -> Weights:
    """Weights of 0 or more as mixtures of the policies that are there, even ones of those without any weight."""
    weights = jnp.where(mask, weights, 0.0)
    total = weights.sum(1, keepdims=True)
    return jnp.where(total > 0, weights, mask) / jnp.where(total > 0, total, mask.sum(1, keepdims=True))


def sample_policies(key: Key, weights: Weights) -> Int[Array, " players"]:
    """A policy of each player, as likely as its mixture has it; by one number each, not one for each policy."""
    upto = weights.cumsum(1)
    numbers = 1 - jax.random.uniform(key, (len(weights), 1))  # above 0, so that none without weight is drawn
    return (upto < numbers * upto[:, -1:]).sum(1, dtype=jnp.int32)


def num_profiles(mask: Mask) -> int:
    """How many profiles a table has, filled or not."""
    return math.prod([mask.shape[1]] * len(mask))
