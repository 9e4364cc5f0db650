"""Populations of parameters as rows of numbers, in which evolvers compute."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from evorl.types import Params


def flatten_member(params: Params) -> Float[Array, " size"]:
    """All numbers of one member."""
    return ravel_pytree(params)[0]


def flatten_population(population: Params) -> Float[Array, "n size"]:
    """Those of a population, leaves [n, ...]."""
    return jax.vmap(flatten_member)(population)


def leaf_indices(params: Params) -> Int[np.ndarray, " size"]:
    """Of each number of a member, to which leaf it belongs."""
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    return np.repeat(np.arange(len(sizes)), sizes)


def unflatten_member(row: Float[Array, " size"], like: Params) -> Params:
    """A member as a pytree like another one."""
    return ravel_pytree(like)[1](row)


def unflatten_population(rows: Float[Array, "n size"], like: Params) -> Params:
    """A population as a pytree, leaves [n, ...], whose members are like another one."""
    return jax.vmap(ravel_pytree(like)[1])(rows)


def sum_weighted(weights: Float[Array, " n"], population: Params) -> Float[Array, " size"]:
    """The weighted sum of members, leaves [n, ...], as a row, in full precision: a GPU's products would round."""
    highest = jax.lax.Precision.HIGHEST
    return flatten_member(jax.tree.map(lambda x: jnp.tensordot(weights, x, 1, precision=highest), population))
