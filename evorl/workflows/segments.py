"""Segments of rollouts, leaves [num_steps, num_envs, ...]: how to split, join and weight them, and which are valid."""

from dataclasses import replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from evorl import tree
from evorl.types import Batch, Transition

Tree = TypeVar("Tree")


def split_into_segments(rollout: Tree, steps: int) -> Tree:
    """Split a rollout into segments of one environment each, leaves [n, steps, ...]."""

    def split_leaf(x: Array) -> Array:
        x = x.reshape(-1, steps, *x.shape[1:])
        return tree.merge_axes(jnp.moveaxis(x, 1, 2))

    return jax.tree.map(split_leaf, rollout)


def join_segments(x: Float[Array, "n steps"], num_envs: int) -> Float[Array, "num_steps num_envs"]:
    """Join the segments of `split_into_segments` into the rollout."""
    return jnp.moveaxis(x.reshape(-1, num_envs, x.shape[1]), 2, 1).reshape(-1, num_envs)


def weight_steps(rollout: Transition, mask: Bool[Array, "num_steps num_envs"]) -> Transition:
    """Return a rollout with weight 1 for the masked steps; all others are 0, except that episode ends stay."""
    ends = {"terminated": rollout.terminated, "truncated": rollout.truncated}
    return replace(tree.select(mask, rollout, tree.zeros_like(rollout)), **ends, weight=mask.astype(jnp.float32))


def valid_segments(weight: Float[Array, "num_steps num_envs"], steps: int) -> tuple[Int[Array, " n"], Bool[Array, ""]]:
    """Return indices of valid segments, one for each of the n segments, and whether any segment is valid.

    A segment is valid if any of its steps has a weight above 0. The valid segments come first, each once; they
    are repeated in turn in place of the others.
    """
    valid = (split_into_segments(weight, steps) > 0).any(1)
    return jnp.argsort(~valid)[jnp.arange(len(valid)) % jnp.maximum(valid.sum(), 1)], valid.any()


def weigh_batch(batch: Batch, weight: Float[Array, "num_steps num_envs"]) -> Batch:
    """Return a batch, leaves [num_steps, num_envs, ...], whose losses and advantages ignore the steps of weight 0."""

    def expand(like: Array) -> Array:
        return jnp.broadcast_to(weight.reshape(*weight.shape, *(1,) * (like.ndim - 2)), like.shape)

    def weigh(own: Any, like: Array) -> Array:
        return expand(like) if own is None else own * expand(like)

    weights = jax.tree.map(weigh, batch.weight, batch.value, is_leaf=lambda x: x is None)
    return replace(batch, weight=weights, advantage=jax.tree.map(lambda x: x * expand(x), batch.advantage))


def valid_rows(rollout: Transition) -> Bool[Array, "steps n"] | bool:
    """Return which rows of a rollout have a weight above 0, or True if all rows count."""
    return True if rollout.weight is None else rollout.weight > 0
