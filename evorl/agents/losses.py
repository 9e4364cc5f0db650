"""Losses and targets that several agents share."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from evorl.returns import gae
from evorl.spaces import Space, has_choice
from evorl.types import Metrics, Transition

TD_ERROR = "td_error"  # updates the priorities of a prioritized replay; not logged
ROW_METRICS = VALUE, RATIO = "rows/value", "rows/ratio"  # for recomputed advantages; not logged


def td_target(batch: Transition, value: Float[Array, "*batch"], discount: Array | float) -> Float[Array, "*batch"]:
    """Return the reward plus the discounted value of the next observation, without bootstrap if terminated.

    The discount is the batch's own, if it has one. On sequences [steps, batch], the target sums n_step
    rewards, or fewer if the episode or the sequence ends before.
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
    """Return the mean over the batch of entries times their row weights, without members that had ended."""
    return mean_of_active(batch, of_each if batch.weight is None else batch.weight * of_each)


def mean_of_active(batch: Transition, of_each: Float[Array, "*batch"]) -> Float[Array, ""]:
    """Return the unweighted mean over the training steps, without members that had ended."""
    return of_each.mean() if batch.members_done is None else mean_of_rows(~batch.training_steps.members_done, of_each)


def zero_inactive(batch: Transition, of_each: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Set the entries of members that had ended to 0."""
    return of_each if batch.members_done is None else jnp.where(batch.training_steps.members_done, 0, of_each)


def choice_mask(space: Space, batch: Transition) -> Any:
    """Return whether several actions were valid at each training step, bool [*batch]; None if always.

    A member that had ended has no choice, whatever its observation says.
    """
    t = batch.training_steps
    choice = has_choice(space, t.obs)
    if t.members_done is None:
        return choice
    return ~t.members_done if choice is None else choice & ~t.members_done


def mean_of_rows(weight: Any, of_each: Shaped[Array, "*rows"]) -> Float[Array, ""]:
    """Return the weighted mean over rows; a weight of None weighs all rows equally."""
    if weight is None:
        return of_each.mean()
    return (weight * of_each).sum() / jnp.maximum(weight.sum(), 1e-8)


def mse_critic_loss(
    batch: Transition, value: Float[Array, "*batch critics"], target: Float[Array, "*batch"]
) -> tuple[Array, Metrics]:
    """Return the squared error of critics with a common target, summed over critics, mean over the batch.

    The metric "td_error" [*batch] is the absolute error of each row, mean over the critics.
    """
    error = value - target[..., None]
    loss = batch_mean(batch, (error**2).sum(-1))
    mean = value.mean() if batch.members_done is None else mean_of_active(batch, value.mean(-1))
    return loss, {"critic_loss": loss, "value": mean, TD_ERROR: zero_inactive(batch, jnp.abs(error).mean(-1))}


def gather_q(values: Float[Array, "*batch choices"], choice: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Return the value of the given action in each row."""
    return jnp.take_along_axis(values, choice[..., None], axis=-1)[..., 0]


def min_over_critics(values: Float[Array, "*batch critics"]) -> Float[Array, "*batch"]:
    """Return the smallest value over the critics, with a gradient for that critic alone.

    The gradient of jnp.min divides by the number of values that equal the minimum. That number is 0, and the
    gradient NaN, if XLA computes the values twice and rounds them differently.
    """
    smallest = jnp.arange(values.shape[-1]) == values.argmin(-1, keepdims=True)
    return jnp.where(smallest, values, 0).sum(-1)


def gae_targets(transitions: Transition, value: Array, next_value: Array, agent: Any) -> tuple[Array, Array]:
    """Return the GAE advantages of one trajectory and the targets of its value function, each [num_steps]."""
    t = transitions
    advantage = gae(t.reward, value, next_value, t.terminated, t.is_done, agent.discount, agent.gae_lambda)
    return advantage, advantage + value
