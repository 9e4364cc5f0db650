"""What agents see: where others are from where they are, as rows of x and y in turn."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from evorl.envs.mpe.world import norm
from evorl.errors import require


def flatten_vectors(x: Float[Array, "k n ..."]) -> Float[Array, "n size"]:
    """Vectors of x and y as a row for each of n."""
    return jnp.moveaxis(x, 0, -1).reshape(x.shape[1], -1)


def concatenate_vectors(*parts: Float[Array, "2 n ..."]) -> Float[Array, "n size"]:
    """Several vectors one after another in a row for each of n."""
    return jnp.concatenate([flatten_vectors(part) for part in parts], axis=-1)


def drop_self(x: Float[Array, "*k n n"]) -> Float[Array, "*k n others"]:
    """What all n are to each without what it is to itself, in their order, n - 1."""
    *lead, n, _ = x.shape
    above = x.reshape(*lead, n * n)[..., 1:].reshape(*lead, n - 1, n + 1)  # each row ends on the diagonal
    return above[..., :-1].reshape(*lead, n, n - 1)


def broadcast_to_observers(x: Float[Array, "k n"]) -> Float[Array, "k n n"]:
    """What n have, for each of n to see."""
    return jnp.broadcast_to(x[:, None, :], (*x.shape, x.shape[-1]))


def select_nearest(
    away: Float[Array, "2 n m"], count: int | None, *more: Float[Array, "k n m"]
) -> Sequence[Float[Array, "_ n count"]]:
    """Of m that lie so far away the count nearest to each of n, nearest first, then zeros; all, in order, for None.

    And so what else is known of each.
    """
    if count is None:
        return away, *more
    far, m = norm(away), away.shape[-1]
    earlier = np.tri(m, k=-1, dtype=bool)  # of two equally far the first comes first
    closer = (far[:, None] < far[..., None]) | ((far[:, None] == far[..., None]) & earlier)
    rank = closer.sum(-1, dtype=jnp.int32)  # which is several times as fast as sorting so few

    def sort_by_rank(known: Float[Array, "m size"], rank: Int[Array, " m"]) -> Float[Array, "count size"]:
        return jnp.zeros((count, known.shape[-1])).at[rank].set(known, mode="drop", unique_indices=True)

    known = jnp.moveaxis(jnp.concatenate([away, *more]), 0, -1)
    found = jnp.moveaxis(jax.vmap(sort_by_rank)(known, rank), -1, 0)
    return jnp.split(found, np.cumsum([2, *map(len, more)])[:-1])


def one_hot(index: Array, n: int) -> Float[Array, "*batch n"]:
    """Rows with a one; of an index that is none of n, zeros."""
    return jax.nn.one_hot(index, n)


def require_neighbors(**counts: int | None) -> None:
    """Raises OptionError where a number of neighbors is none."""
    for name, count in counts.items():
        require(count is None or count >= 1, name, count, "must be at least 1, or null for all")


def require_members(least: int = 1, **counts: int) -> None:
    """Raises OptionError where there are fewer than the least of a kind."""
    for name, count in counts.items():
        require(count >= least, name, count, f"must be at least {least}")
