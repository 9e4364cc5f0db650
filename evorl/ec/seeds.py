"""Populations that are stored as seeds.

Individuals are generated from their seeds for evaluation, and a second time for the update.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl import mesh, tree
from evorl.ec.noise import Noise, Seeds, choose_block, compute_unfused, take_block

T = TypeVar("T")


def sum_seed_noise(
    noise: Noise,
    seeds: Seeds,
    utility: Float[Array, " n"],
    table: Any,
    size: int,
    sum_rows: Callable[[Float[Array, " m"], Float[Array, "m size"]], T],
) -> T:
    """Return the sum over a population of mirrored pairs of utility times noise.

    sum_rows(weights [m], rows [m, size]) sums one block of rows. Each device generates its share of the
    mirrored pairs, and the devices exchange only one sum.
    """
    n = len(utility)
    weights = utility[::2] - utility[1::2]
    shards = mesh.count_shards(mesh.ENVS)
    missing = -(n // 2) % shards
    pad = lambda x: jnp.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)])  # noqa: E731
    pairs, weights = jax.tree.map(pad, (tree.index(seeds, slice(None, None, 2)), weights))

    def sum_on_device(pairs: Seeds, weights: Array) -> T:
        m = len(weights)
        block = choose_block(m, size)

        def add(i: Array, total: T) -> T:
            rows = lambda i: jax.vmap(lambda s: noise.generate_row(s, table, size))(take_block(i, block, pairs))  # noqa: E731
            return jax.tree.map(jnp.add, total, sum_rows(take_block(i, block, weights), compute_unfused(rows, i)))

        none = tree.zeros_like(jax.eval_shape(sum_rows, jnp.zeros(block), jnp.zeros((block, size))))
        return mesh.psum(jax.lax.fori_loop(0, m // block, add, none), mesh.ENVS)

    return mesh.shard_over_axis(sum_on_device, mesh.ENVS, (True, True), False)(pairs, weights)


def create_zero_seed() -> Seeds:
    """Return a seed whose sign is 0, so that it stands for no noise."""
    none = jnp.uint32(0)
    return Seeds(jnp.zeros(2, jnp.uint32), none, jnp.float32(0))
