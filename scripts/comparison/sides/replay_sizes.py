"""Sizes of the comparison of replay buffers."""

import jax
import jax.numpy as jnp

CAPACITY, BATCH, ADDS = 1_000_000, 256, 10_000  # ADDS in a round
COLUMNS = {"obs": (17,), "action": (6,), "reward": (), "next_obs": (17,), "done": ()}


def make_rows(count: int) -> dict[str, jax.Array]:
    """Return transitions of 42 numbers each."""
    return {name: jnp.ones((count, *shape)) for name, shape in COLUMNS.items()}
