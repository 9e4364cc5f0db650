"""Building blocks of observations: relative positions, flattened to rows of alternating x and y."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from evorl.envs.mpe.world import FEW_ENTITIES, norm
from evorl.errors import require


def flatten_vectors(x: Float[Array, "k n ..."]) -> Float[Array, "n size"]:
    """Flatten vectors to one row for each of n entities."""
    return jnp.moveaxis(x, 0, -1).reshape(x.shape[1], -1)


def concatenate_vectors(*parts: Float[Array, "2 n ..."]) -> Float[Array, "n size"]:
    """Flatten several vectors and concatenate them to one row for each of n entities."""
    return jnp.concatenate([flatten_vectors(part) for part in parts], axis=-1)


def drop_self(x: Float[Array, "*k n n"]) -> Float[Array, "*k n others"]:
    """Drop the diagonal of the last two axes, [n, n], which relates each entity to itself."""
    *lead, n, _ = x.shape
    above = x.reshape(*lead, n * n)[..., 1:].reshape(*lead, n - 1, n + 1)  # each row ends with a diagonal entry
    return above[..., :-1].reshape(*lead, n, n - 1)


def broadcast_to_observers(x: Float[Array, "k n"]) -> Float[Array, "k n n"]:
    """Repeat the values of n entities for each of n observers."""
    return jnp.broadcast_to(x[:, None, :], (*x.shape, x.shape[-1]))


def select_nearest(
    away: Float[Array, "2 n m"], count: int | None, *more: Float[Array, "k n m"]
) -> Sequence[Float[Array, "_ n count"]]:
    """Select the entities nearest to each of n observers, in the order of distance.

    Args:
        away: Relative positions of m entities, shape [2, n, m].
        count: Number of entities to select, padded with zeros if there are fewer; None keeps all, in their
            order.
        *more: Other values of the entities, shape [k, n, m].

    Returns:
        The relative positions and the other values of the selected entities, shape [k, n, count].
    """
    if count is None:
        return away, *more
    far, m = norm(away), away.shape[-1]
    if m > FEW_ENTITIES:
        return select_nearest_of_many(far, count, away, *more)
    earlier = np.tri(m, k=-1, dtype=bool)  # ties: the first entity comes first
    closer = (far[:, None] < far[..., None]) | ((far[:, None] == far[..., None]) & earlier)
    rank = closer.sum(-1, dtype=jnp.int32)  # several times faster than a sort for so few entities

    def sort_by_rank(known: Float[Array, "m size"], rank: Int[Array, " m"]) -> Float[Array, "count size"]:
        return jnp.zeros((count, known.shape[-1])).at[rank].set(known, mode="drop", unique_indices=True)

    known = jnp.moveaxis(jnp.concatenate([away, *more]), 0, -1)
    found = jnp.moveaxis(jax.vmap(sort_by_rank)(known, rank), -1, 0)
    return jnp.split(found, np.cumsum([2, *map(len, more)])[:-1])


def select_nearest_of_many(
    far: Float[Array, "n m"], count: int, *values: Float[Array, "_ n m"]
) -> Sequence[Float[Array, "_ n count"]]:
    """Select the entities with the smallest distances, the first ones at ties, as `select_nearest` does."""
    nearest = jax.lax.top_k(-far, min(count, far.shape[-1]))[1]
    missing = [(0, 0), (0, 0), (0, count - nearest.shape[-1])]
    return [jnp.pad(jnp.take_along_axis(known, nearest[None], -1), missing) for known in values]


def one_hot(index: Array, n: int) -> Float[Array, "*batch n"]:
    """Return one-hot rows; an index out of range gives zeros."""
    return jax.nn.one_hot(index, n)


def require_neighbors(**counts: int | None) -> None:
    """Raise OptionError if a number of neighbors is below 1; None stands for all."""
    for name, count in counts.items():
        require(count is None or count >= 1, name, count, "must be at least 1, or null for all")


def require_members(least: int = 1, **counts: int) -> None:
    """Raise OptionError if a number of entities is below the minimum."""
    for name, count in counts.items():
        require(count >= least, name, count, f"must be at least {least}")
