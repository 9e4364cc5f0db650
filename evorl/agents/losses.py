"""Losses and targets that several agents share."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from evorl.returns import gae
from evorl.spaces import Space, has_choice
from evorl.types import Metrics, Transition

TD_ERROR = "td_error"  # by which replays with priorities are updated; it is no metric of a step
ROW_METRICS = VALUE, RATIO = "rows/value", "rows/ratio"  # by which advantages are estimated anew; no metrics of a step


def td_target(batch: Transition, value: Float[Array, "*batch"], discount: Array | float) -> Float[Array, "*batch"]:
    """The reward and what the value at next_obs is worth by the batch's own discount, or by that of a step.

    Of sequences, [steps, batch], n_step rewards, or as many as there are up to the end of the episode or the sequence.
    """
    worth = discount if batch.discount is None else batch.discount
    target = batch.reward + worth * ~batch.terminated * value
    if batch.n_step == 1:
        return target
    last = batch.is_done.at[-1].set(True)

    def extend_return(_: Any, total: Array) -> Array:
        return jnp.where(last, target, batch.reward + discount * jnp.roll(total, -1, axis=0))

    return jax.lax.fori_loop(1, batch.n_step, extend_return, target)


def batch_mean(batch: Transition, of_each: Float[Array, "*batch"]) -> Float[Array, ""]:
    """The mean over a batch, of whose rows or sequences some may count more, those of members that are gone not."""
    return mean_of_active(batch, of_each if batch.weight is None else batch.weight * of_each)


def mean_of_active(batch: Transition, of_each: Float[Array, "*batch"]) -> Float[Array, ""]:
    """The mean over the steps that are learned from, but those of members that are gone."""
    return of_each.mean() if batch.members_done is None else mean_of_rows(~batch.training_steps.members_done, of_each)


def zero_inactive(batch: Transition, of_each: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The numbers of the steps that are learned from, 0 of members that are gone."""
    return of_each if batch.members_done is None else jnp.where(batch.training_steps.members_done, 0, of_each)


def choice_mask(space: Space, batch: Transition) -> Any:
    """Return whether each step that is learned from had a choice, bool [*batch]; None where all had one.

    A member that is gone has none, whatever its observation says.
    """
    t = batch.training_steps
    choice = has_choice(space, t.obs)
    if t.members_done is None:
        return choice
    return ~t.members_done if choice is None else choice & ~t.members_done


def mean_of_rows(weight: Any, of_each: Shaped[Array, "*rows"]) -> Float[Array, ""]:
    """The mean over rows, of which some may count less than others, or not at all; None where all count alike."""
    if weight is None:
        return of_each.mean()
    return (weight * of_each).sum() / jnp.maximum(weight.sum(), 1e-8)


def mse_critic_loss(
    batch: Transition, value: Float[Array, "*batch critics"], target: Float[Array, "*batch"]
) -> tuple[Array, Metrics]:
    """The loss of critics that share a target: summed over critics, mean over the batch.

    The metrics have the "td_error" [*batch] of each row, its size in the mean of the critics.
    """
    error = value - target[..., None]
    loss = batch_mean(batch, (error**2).sum(-1))
    mean = value.mean() if batch.members_done is None else mean_of_active(batch, value.mean(-1))
    return loss, {"critic_loss": loss, "value": mean, TD_ERROR: zero_inactive(batch, jnp.abs(error).mean(-1))}


def gather_q(values: Float[Array, "*batch choices"], choice: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The value of one choice of all."""
    return jnp.take_along_axis(values, choice[..., None], axis=-1)[..., 0]


def min_over_critics(values: Float[Array, "*batch critics"]) -> Float[Array, "*batch"]:
    """The smallest value, with a gradient for that one alone.

    The gradient of jnp.min divides by how many values equal the smallest: none, so NaN, where XLA computes them twice
    and rounds them differently.
    """
    smallest = jnp.arange(values.shape[-1]) == values.argmin(-1, keepdims=True)
    return jnp.where(smallest, values, 0).sum(-1)


def gae_targets(transitions: Transition, value: Array, next_value: Array, agent: Any) -> tuple[Array, Array]:
    """Generalized advantages of a trajectory [num_steps], and with them the targets of its value."""
    t = transitions
    advantage = gae(t.reward, value, next_value, t.terminated, t.is_done, agent.discount, agent.gae_lambda)
    return advantage, advantage + value
