"""Batched actions by policies of a pool, grouped by policy so that no parameters are copied for each row."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Int

from evorl import tree
from evorl.leagues.policy_sets import PolicySet
from evorl.types import Key, Memory

ActFn = Callable[..., Any]  # (policy, *row) -> results


def apply_by_policy(act: ActFn, pool: Any, which: Int[Array, " n"], rows: tuple[Any, ...]) -> Any:
    """Apply a function to each row and its policy of the pool.

    Rows have leaves [n, ...], and the pool has leaves [policies, ...]. Under vmap over the rows, all copies
    are grouped together. `act` must not close over traced values.
    """

    @custom_vmap
    def apply_batch(pool: Any, which: Array, rows: Any) -> Any:
        return _apply_in_blocks(act, pool, which, rows)

    @apply_batch.def_vmap
    def _(copies: int, batched: list[Any], pool: Any, which: Array, rows: Any) -> tuple[Any, Any]:
        of_pool, of_which, of_rows = batched
        lead = lambda x, has: x if has else tree.broadcast(x, copies)  # noqa: E731
        rows = jax.tree.map(lead, rows, of_rows)
        if any(jax.tree.leaves(of_pool)):
            axes = jax.tree.map(lambda has: 0 if has else None, (of_pool, of_which))
            found = jax.vmap(lambda *x: _apply_in_blocks(act, *x), (*axes, 0))(pool, which, rows)
        elif of_which:
            flat = apply_batch(pool, *tree.merge_axes((which, rows)))
            found = jax.tree.map(lambda x: x.reshape(copies, -1, *x.shape[1:]), flat)
        else:  # each row has the same policy in all copies
            of_each = jax.vmap(lambda policy, row: act(policy, *row), (None, 0))
            turned = apply_by_policy(lambda policy, *row: of_each(policy, row), pool, which, _swap_axes(rows))
            found = _swap_axes(turned)
        return found, jax.tree.map(lambda _: True, found)

    return apply_batch(pool, which, rows)


def _swap_axes(rows: Any) -> Any:
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)


def act_from_pool(
    cast: PolicySet,
    pool: Any,
    policies: Int[Array, " n"],
    players: Int[Array, " n"],
    obs: Any,
    memory: Memory,
    key: Key,
) -> tuple[Any, Memory]:
    """Return the actions of a role's players by policies of a pool, and their new memory.

    The pool has leaves [capacity, players, ...].
    """
    flat, each = tree.merge_axes(pool), jax.tree.leaves(pool)
    which = policies * each[0].shape[1] + players if each else policies
    return apply_by_policy(cast.act, flat, which, (obs, memory, jax.random.split(key, len(which))))


def _apply_in_blocks(act: ActFn, pool: Any, which: Int[Array, " n"], rows: Any) -> Any:
    """Apply a function in blocks of equal size, each of one policy, of which the last blocks are padded."""
    n, leaves = len(which), jax.tree.leaves(pool)
    policies = len(leaves[0]) if leaves else max(n, 1)
    size = n // (2 * policies)  # the padding adds at most half as many rows
    if size < 2:
        return jax.vmap(lambda i, row: act(tree.index(pool, i), *row))(which, rows)
    blocks = (n + policies * (size - 1)) // size
    counts = jnp.bincount(which, length=policies)
    taken = -(-counts // size)
    order = jnp.argsort(which)
    ranks = jnp.arange(n) - (jnp.cumsum(counts) - counts)[which[order]]
    places = (jnp.cumsum(taken) - taken)[which[order]] * size + ranks
    own = jnp.minimum(jnp.searchsorted(jnp.cumsum(taken), jnp.arange(blocks), side="right"), policies - 1)
    sources = jnp.zeros(blocks * size, jnp.int32).at[places].set(order.astype(jnp.int32))
    there = jax.tree.map(lambda x: x[sources].reshape(blocks, size, *x.shape[1:]), rows)
    found = jax.vmap(jax.vmap(lambda policy, row: act(policy, *row), (None, 0)))(tree.index(pool, own), there)
    back = jnp.zeros(n, jnp.int32).at[order].set(places.astype(jnp.int32))
    return tree.index(tree.merge_axes(found), back)
