"""Conversion of populations of parameters to and from arrays with one row per individual, on which evolvers compute."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from evorl import mesh, tree
from evorl.types import Params

BLOCK_NUMBERS = 2**24  # numbers of individuals that are copied at a time (64 MB)
T = TypeVar("T")


def flatten_member(params: Params) -> Float[Array, " size"]:
    """Return the parameters of one individual as a vector, shape [size]."""
    return ravel_pytree(params)[0]


def flatten_population(population: Params) -> Float[Array, "n size"]:
    """Return the parameters of a population, leaves [n, ...], as a matrix with one row per individual."""
    return jax.vmap(flatten_member)(population)


def leaf_indices(params: Params) -> Int[np.ndarray, " size"]:
    """Return the index of the leaf that each entry of the flattened parameters belongs to, shape [size]."""
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    return np.repeat(np.arange(len(sizes)), sizes)


def unflatten_member(row: Float[Array, " size"], like: Params) -> Params:
    """Return a flattened individual as a pytree with the structure of `like`."""
    return ravel_pytree(like)[1](row)


def unflatten_population(rows: Float[Array, "n size"], like: Params) -> Params:
    """Return rows of flattened individuals as a pytree, leaves [n, ...], with the structure of `like` for each."""
    return jax.vmap(ravel_pytree(like)[1])(rows)


def sum_over_rows(
    population: Params,
    index: Int[Array, " k"],
    weights: Float[Array, " k"],
    total: Callable[[Float[Array, " k"], Float[Array, "k size"]], T],
    group: int = 1,
) -> T:
    """Return total(weights [k], rows [k, size]) of the individuals with the given indices, as vectors.

    The total of many rows must be the sum of the totals of its parts, in each of which groups of `group`
    consecutive rows are together: no more than BLOCK_NUMBERS numbers are copied at a time, so that memory holds
    one population. If the population is distributed over several devices, each of them computes the total of
    its own individuals, with zeros in place of the others and of their weights, and they exchange only the sum
    of these totals.
    """
    n = jax.tree.leaves(population)[0].shape[0]

    size = sum(leaf[0].size for leaf in jax.tree.leaves(population))
    rows = min(len(index), max(BLOCK_NUMBERS // max(size, 1) // group, 1) * group)
    spare = -len(index) % rows

    def total_on_device(population: Params, index: Array, weights: Array) -> T:
        def total_block(block: tuple[Array, Array]) -> T:
            at, here = mesh.local_index(block[0], mesh.ENVS, jax.tree.leaves(population)[0].shape[0], n)
            own = flatten_population(jax.tree.map(lambda x: x[at], population))
            masked = jnp.where(jnp.expand_dims(here, -1), own, 0.0)
            return total(jnp.where(here, block[1], 0.0), masked)

        def add_block(sums: T, block: tuple[Array, Array]) -> tuple[T, None]:
            return jax.tree.map(jnp.add, sums, total_block(block)), None

        pad = lambda x: jnp.pad(x, (0, spare)).reshape(-1, rows)  # noqa: E731
        blocks = pad(index), pad(weights)
        first, others = tree.index(blocks, 0), tree.index(blocks, slice(1, None))
        return mesh.psum(jax.lax.scan(add_block, total_block(first), others)[0], mesh.ENVS)

    whole = mesh.shard_over_axis(total_on_device, mesh.ENVS, (True, False, False), False, n)
    return whole(population, index, weights)


def sum_weighted(weights: Float[Array, " n"], population: Params) -> Float[Array, " size"]:
    """Return the weighted sum of the individuals of a population, leaves [n, ...], as a vector, shape [size].

    The product is computed in full precision, since a GPU would round its factors by default.
    """
    highest = jax.lax.Precision.HIGHEST
    return flatten_member(jax.tree.map(lambda x: jnp.tensordot(weights, x, 1, precision=highest), population))
