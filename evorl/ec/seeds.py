"""Populations that are stored as seeds.

Individuals are generated from their seeds for evaluation, and a second time for the update.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl import mesh, tree
from evorl.ec.noise import Noise, Seeds, compute_unfused, find_largest_divisor

T = TypeVar("T")
BLOCK_NUMBERS = 2**16  # noise values generated at once, at most, unless rows are long


def materialize_members(
    noise: Noise, seeds: Seeds, table: Any, size: int, n: int, build_member: Callable[[Array, Array], T]
) -> T:
    """Return build_member(noise [size], sign) for each of m seeds, leaves [m, ...].

    The seeds come from a population of n. Only one block of noise is in memory at a time.
    """
    m = len(seeds.sign)
    block = find_largest_divisor(m, max(BLOCK_NUMBERS // size, 4))

    def rows(i: Array) -> Array:
        return jax.vmap(lambda seed: noise.generate_row(seed, table, size, n))(take_block(i, block, seeds))

    def write(i: Array, members: T) -> T:
        put = lambda to, x: jax.lax.dynamic_update_slice_in_dim(to, x, i * block, 0)  # noqa: E731
        return jax.tree.map(
            put, members, jax.vmap(build_member)(compute_unfused(rows, i), take_block(i, block, seeds.sign))
        )

    like = jax.eval_shape(jax.vmap(build_member), jnp.zeros((m, size)), seeds.sign)
    return jax.lax.fori_loop(0, m // block, write, tree.zeros_like(like))


def sum_seed_noise(
    noise: Noise,
    seeds: Seeds,
    utility: Float[Array, " n"],
    table: Any,
    size: int,
    sum_rows: Callable[[Float[Array, " m"], Float[Array, "m size"]], T],
) -> T:
    """Return the sum over the population of utility times noise.

    sum_rows(weights [m], rows [m, size]) sums one block of rows. Each device generates its share of the
    mirrored pairs, and the devices exchange only one sum.
    """
    n = len(utility)
    weights = utility[: n // 2] - utility[n // 2 :]
    shards = mesh.count_shards(mesh.ENVS)
    missing = -(n // 2) % shards
    pad = lambda x: jnp.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)])  # noqa: E731
    pairs, weights = jax.tree.map(pad, (tree.index(seeds, slice(n // 2)), weights))

    def sum_on_device(pairs: Seeds, weights: Array) -> T:
        m = len(weights)
        block = find_largest_divisor(m, max(BLOCK_NUMBERS // size, 4))

        def add(i: Array, total: T) -> T:
            rows = lambda i: jax.vmap(lambda s: noise.generate_row(s, table, size, n))(take_block(i, block, pairs))  # noqa: E731
            return jax.tree.map(jnp.add, total, sum_rows(take_block(i, block, weights), compute_unfused(rows, i)))

        none = tree.zeros_like(jax.eval_shape(sum_rows, jnp.zeros(block), jnp.zeros((block, size))))
        return mesh.psum(jax.lax.fori_loop(0, m // block, add, none), mesh.ENVS)

    return mesh.shard_over_axis(sum_on_device, mesh.ENVS, (True, True), False)(pairs, weights)


def take_block(i: Array, block: int, rows: T) -> T:
    """Return the i-th block of rows, leaves [block, ...], of arrays with leaves [n, ...]."""
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * block, block), rows)


def create_zero_seed() -> Seeds:
    """Return a seed whose sign is 0, so that it stands for no noise."""
    none = jnp.uint32(0)
    return Seeds(jnp.zeros(2, jnp.uint32), none, none, jnp.float32(0))
