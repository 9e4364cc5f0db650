"""Segments of rollouts, leaves [num_steps, num_envs, ...]: how to split, join and weight them, and which are valid."""

from dataclasses import replace
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from evorl import tree
from evorl.types import Transition

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
    """Return indices of complete segments, one for each of the n segments, and whether any segment is complete.

    A segment is complete if none of its steps has weight 0. The complete segments come first, each once; they
    are repeated in turn in place of the others.
    """
    whole = (split_into_segments(weight, steps) > 0).all(1)
    return jnp.argsort(~whole)[jnp.arange(len(whole)) % jnp.maximum(whole.sum(), 1)], whole.any()


def valid_rows(rollout: Transition) -> Bool[Array, "steps n"] | bool:
    """Return which rows of a rollout have a weight above 0, or True if all rows count."""
    return True if rollout.weight is None else rollout.weight > 0
