"""Replay buffer of flashbax."""

from typing import Any

import flashbax  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
import jax
import jax.numpy as jnp
from jax_rounds import scan_steps
from replay_sizes import ADDS, BATCH, CAPACITY, make_rows
from side import Round, serve


def replay(size: int) -> Round:
    """Add `size` rows to a full replay buffer, then sample a batch."""
    buffer = flashbax.make_item_buffer(CAPACITY, BATCH, BATCH, add_batches=size > 1)
    rows = make_rows(size) if size > 1 else jax.tree.map(lambda x: x[0], make_rows(1))
    state = buffer.init(jax.tree.map(lambda x: x[0], make_rows(1)))
    full = state.replace(is_full=jnp.bool_(True))

    def step(carry: Any, key: Any) -> Any:
        state, total = carry
        state = buffer.add(state, rows)
        return (state, jax.tree.map(jnp.add, total, buffer.sample(state, key).experience)), None

    return scan_steps(step, (full, make_rows(BATCH)), ADDS, ADDS)


if __name__ == "__main__":
    serve({"replay": replay}, "flashbax", "jax")
