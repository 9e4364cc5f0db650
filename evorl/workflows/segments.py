"""Rollouts, leaves [num_steps, num_envs, ...], in segments: how they are cut, and what of them is there."""

from dataclasses import replace
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from evorl import tree
from evorl.types import Transition

Tree = TypeVar("Tree")


def split_into_segments(rollout: Tree, steps: int) -> Tree:
    """A rollout in segments of one environment each, leaves [n, steps, ...]."""

    def split_leaf(x: Array) -> Array:
        x = x.reshape(-1, steps, *x.shape[1:])
        return tree.merge_axes(jnp.moveaxis(x, 1, 2))

    return jax.tree.map(split_leaf, rollout)


def join_segments(x: Float[Array, "n steps"], num_envs: int) -> Float[Array, "num_steps num_envs"]:
    """The rollout of which split_into_segments makes these segments."""
    return jnp.moveaxis(x.reshape(-1, num_envs, x.shape[1]), 2, 1).reshape(-1, num_envs)


def weight_steps(rollout: Transition, mask: Bool[Array, "num_steps num_envs"]) -> Transition:
    """Return a rollout whose weights say which steps count; of the others it holds zeros, and where they end."""
    ends = {"terminated": rollout.terminated, "truncated": rollout.truncated}
    return replace(tree.select(mask, rollout, tree.zeros_like(rollout)), **ends, weight=mask.astype(jnp.float32))


def valid_segments(weight: Float[Array, "num_steps num_envs"], steps: int) -> tuple[Int[Array, " n"], Bool[Array, ""]]:
    """For each segment itself or, where one of its steps has weight 0, another one in turn; and whether any is whole.

    Those that are whole come first.
    """
    whole = (split_into_segments(weight, steps) > 0).all(1)
    return jnp.argsort(~whole)[jnp.arange(len(whole)) % jnp.maximum(whole.sum(), 1)], whole.any()


def valid_rows(rollout: Transition) -> Bool[Array, " rows"] | None:
    """Return which rows of a rollout count, by their weights; None where all do."""
    return None if rollout.weight is None else rollout.weight.reshape(-1) > 0
