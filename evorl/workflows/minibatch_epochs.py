"""Epochs over a rollout: one gradient step on each minibatch of its segments, in random order."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from evorl import mesh, tree
from evorl.agents.losses import mean_of_rows
from evorl.replay.row_layout import RowLayout
from evorl.types import Batch, Key, Metrics, OnPolicyAgent
from evorl.workflows.base import loop_with_metrics


def run_epochs(
    agent: OnPolicyAgent,
    state: Any,
    batch: Batch,
    key: Key,
    num_epochs: Int[Array, ""],
    minibatch_size: int,
    valid_segments: Int[Array, " segments"] | None = None,
) -> tuple[Any, Metrics, Int[Array, ""]]:
    """Learn from a batch in epochs of minibatches, until the agent stops early.

    Args:
        agent: Agent that defines the loss.
        state: State of the agent.
        batch: Batch, leaves [segments, steps, ...].
        key: Random key of the order of the segments.
        num_epochs: Number of epochs, [].
        minibatch_size: Number of segments in a minibatch; it divides the number of segments.
        valid_segments: Index of the segment that is used in place of each segment; None to use the segments
            themselves.

    Returns:
        The state of the agent, the mean metrics, and the number of epochs.
    """
    layout = RowLayout.from_row(jax.eval_shape(lambda: tree.index(batch, 0)))
    tables, count = layout.pack(batch), tree.leading_size(batch)  # packed, so that a minibatch is one gather

    def update_on_minibatch(state: Any, segments: Int[Array, " n"]) -> tuple[Any, Metrics]:
        minibatch = layout.unpack(jax.tree.map(lambda x: x[segments], tables))
        minibatch = mesh.spread_rows(minibatch, mesh.ENVS)
        return agent.update(state, lambda params: agent.loss(params, minibatch))

    def run_epoch(i: Array, state: Any) -> tuple[Any, Metrics]:
        order = tree.random_permutation(jax.random.split(jax.random.fold_in(key, i))[0], count)
        order = order if valid_segments is None else valid_segments[order]
        state, metrics = jax.lax.scan(update_on_minibatch, state, order.reshape(-1, minibatch_size))
        return state, tree.mean(metrics)

    return loop_with_metrics(num_epochs, run_epoch, state, agent.early_stop)


def standardize_advantages(batch: Batch, valid_segments: Int[Array, " segments"] | None = None) -> Batch:
    """Standardize the advantages of a batch among its valid segments; in a multi-agent environment, of each group."""

    def standardize_group(x: Array, weight: Any) -> Array:
        if valid_segments is None:
            return standardize(x, weight=weight)
        return standardize(x, x[valid_segments], tree.index(weight, valid_segments))

    return replace(batch, advantage=jax.tree.map(standardize_group, batch.advantage, batch.weight))


def standardize(
    x: Float[Array, "..."], among: Float[Array, "..."] | None = None, weight: Any = None
) -> Float[Array, "..."]:
    """Subtract the mean and divide by the standard deviation of `among` (default: x itself), with optional weights."""
    among = x if among is None else among
    if weight is None:
        return (x - among.mean()) / (among.std() + 1e-8)
    mean = mean_of_rows(weight, among)
    return (x - mean) / (jnp.sqrt(mean_of_rows(weight, (among - mean) ** 2)) + 1e-8)
