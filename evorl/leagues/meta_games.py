"""A meta-game: players choose among the policies that they have; what mixtures of them pay, and lack."""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from evorl.errors import require
from evorl.types import Key

Table: TypeAlias = Float[Array, "players ..."]  # [players, capacity, ..., capacity], what a profile pays each player
Mask: TypeAlias = Bool[Array, "players capacity"]  # which policies are there
Weights: TypeAlias = Float[Array, "players capacity"]  # each player's mixture, 0 where no policy is


def profiles(mask: Mask) -> Bool[Array, "..."]:
    """Which profiles are of policies that are there, [capacity, ..., capacity]."""
    return jnp.stack(jnp.meshgrid(*mask, indexing="ij")).all(0)


def filled(payoffs: Table, mask: Mask) -> Table:
    """Payoffs, 0 where a policy is not there; raises OptionError where they are not [players, capacity, ...]."""
    wanted = (len(mask), *[mask.shape[1]] * len(mask))
    require(payoffs.shape == wanted, "payoffs", f"{list(payoffs.shape)}", f"must be {list(wanted)}")
    return jnp.where(profiles(mask), payoffs, 0.0)


def span(payoffs: Table, mask: Mask) -> Float[Array, ""]:
    """The payoffs' range: the most that any player gets less the least that any does."""
    there = profiles(mask)
    return jnp.where(there, payoffs, -jnp.inf).max() - jnp.where(there, payoffs, jnp.inf).min()


def deviations(payoffs: Table, weights: Weights) -> Weights:
    """What each policy of each player gets against the mixtures of all others."""
    found = []
    for player in range(len(weights)):
        left = payoffs[player]
        for other in reversed(range(len(weights))):
            if other != player:
                left = jnp.tensordot(left, weights[other], axes=(other, 0))
        found.append(left)
    return jnp.stack(found)


def gains(
    payoffs: Table,
    mask: Mask,
    weights: Weights,
) -> Float[Array, " players"]:
    """The most that each player gains by a policy instead of its mixture, never less than 0."""
    each = deviations(filled(payoffs, mask), weights)
    best = jnp.where(mask, each, -jnp.inf).max(1)
    return jnp.maximum(best - (each * weights).sum(1), 0.0)


def gap(
    payoffs: Table,
    mask: Mask,
    weights: Weights,
) -> Float[Array, ""]:
    """The most that any player gains by a policy instead of its mixture."""
    return gains(payoffs, mask, weights).max()


def normalized(weights: Weights, mask: Mask) -> Weights:
    """Weights of 0 or more as mixtures of the policies that are there, even ones of those without any weight."""
    weights = jnp.where(mask, weights, 0.0)
    total = weights.sum(1, keepdims=True)
    return jnp.where(total > 0, weights, mask) / jnp.where(total > 0, total, mask.sum(1, keepdims=True))


def drawn(key: Key, weights: Weights) -> Int[Array, " players"]:
    """A policy of each player, as likely as its mixture has it; by one number each, not one for each policy."""
    upto = weights.cumsum(1)
    numbers = 1 - jax.random.uniform(key, (len(weights), 1))  # above 0, so that none without weight is drawn
    return (upto < numbers * upto[:, -1:]).sum(1, dtype=jnp.int32)


def num_profiles(mask: Mask) -> int:
    """How many profiles a table has, filled or not."""
    return math.prod([mask.shape[1]] * len(mask))
