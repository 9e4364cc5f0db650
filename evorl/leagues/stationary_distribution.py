"""Stationary distribution of a Markov chain, accurate even if some transitions are very rare."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

STATES_PER_BLOCK = 64  # number of states that are eliminated together


def compute_stationary_distribution(moves: Float[Array, "n n"], there: Bool[Array, " n"]) -> Float[Array, " n"]:
    """Return the stationary distribution of a Markov chain.

    `moves` contains the transition probabilities from states (rows) to states (columns), up to a common
    factor; the diagonal is ignored. States are eliminated without subtractions (Grassmann, Taksar and Heyman
    1985), so that each weight has a small relative error. Only the states in `there` count; each of them must
    be reachable from each other one.
    """
    n = len(moves)
    order = jnp.argsort(~there, stable=True)  # states that are not in `there` come last and are not visited
    blocks = -(-n // STATES_PER_BLOCK)
    padding = blocks * STATES_PER_BLOCK - n
    both = there[order][:, None] & there[order]
    q = jnp.pad(jnp.where(both, moves[order][:, order], 0.0), ((0, padding), (0, padding)))
    visited = -(-there.sum() // STATES_PER_BLOCK)

    q = jax.lax.fori_loop(0, visited, lambda i, q: _eliminate_block(q, (visited - 1 - i) * STATES_PER_BLOCK), q)

    def substitute_back(k: Int[Array, ""], weights: Float[Array, " m"]) -> Float[Array, " m"]:
        before = jnp.arange(len(q)) < k
        weights = weights.at[k].set(jnp.where(before, weights * q[:, k], 0.0).sum())
        return weights / weights.max()

    weights = jax.lax.fori_loop(1, there.sum(), substitute_back, jnp.zeros(len(q)).at[0].set(1.0))[:n]
    return jnp.zeros(n).at[order].set(weights / weights.sum())


def _eliminate_block(q: Float[Array, "m m"], first: Int[Array, ""]) -> Float[Array, "m m"]:
    """Eliminate a block of states; return the chain among the states before it.

    The columns of the block are divided by the rate at which each of its states is left for earlier states.
    """
    m, places = len(q), jnp.arange(len(q))
    rows = jax.lax.dynamic_slice(q, (first, 0), (STATES_PER_BLOCK, m))
    columns = jax.lax.dynamic_slice(q, (0, first), (m, STATES_PER_BLOCK))

    def eliminate_state(i: Int[Array, ""], carry: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, columns = carry
        k = STATES_PER_BLOCK - 1 - i
        row = jnp.where(places < first + k, rows[k], 0.0)
        left = row.sum()
        column = jnp.where(left > 0, columns[:, k] / left, 0.0)
        column = jnp.where(places < first + k, column, 0.0)
        columns = columns.at[:, k].set(column) + jnp.where(
            jnp.arange(STATES_PER_BLOCK) < k,
            column[:, None] * jax.lax.dynamic_slice(row, (first,), (STATES_PER_BLOCK,)),
            0.0,
        )
        rows = rows + jax.lax.dynamic_slice(column, (first,), (STATES_PER_BLOCK,))[:, None] * row
        return rows, columns

    rows, columns = jax.lax.fori_loop(0, STATES_PER_BLOCK, eliminate_state, (rows, columns))
    before = places < first
    q = q + jnp.where(before[:, None], columns, 0.0) @ jnp.where(before, rows, 0.0)
    return jax.lax.dynamic_update_slice(q, columns, (0, first))
