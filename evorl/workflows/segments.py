"""Rollouts, leaves [num_steps, num_envs, ...], in segments: what is shuffled, and what of it is there."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evorl import tree
from evorl.types import Batch, Transition


def cut(batch: Batch, steps: int) -> Batch:
    """A batch in segments [n, steps, ...] of one environment each, with the memory before each."""
    memory = tree.merge_axes(tree.index(batch.memory, slice(None, None, steps)))
    return replace(jax.tree.map(lambda x: _cut(x, steps), replace(batch, memory=())), memory=memory)


def filled(segments: Batch, weight: Float[Array, "num_steps num_envs"]) -> tuple[Batch, Bool[Array, ""]]:
    """Segments [n, steps, ...] with others in turn for those in which a step has weight 0; and whether any is whole."""
    whole = (_cut(weight, segments.advantage.shape[1]) > 0).all(1)
    source = jnp.argsort(~whole)[jnp.arange(len(whole)) % jnp.maximum(whole.sum(), 1)]
    return tree.index(segments, source), whole.any()


def there(rollout: Transition) -> Bool[Array, " rows"] | None:
    """Which rows of a rollout were not lost on the host, by their weights; None where none can be."""
    return None if isinstance(rollout.weight, tuple) else rollout.weight.reshape(-1) > 0


def _cut(x: Array, steps: int) -> Array:
    x = x.reshape(-1, steps, *x.shape[1:])
    return tree.merge_axes(jnp.moveaxis(x, 1, 2))
