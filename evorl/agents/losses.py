"""Losses and targets that several agents share."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from evorl.returns import gae
from evorl.spaces import Space, has_choice
from evorl.types import Batch, Hyperparams, Metrics, Transition

TD_ERROR = "td_error"  # by which replays with priorities are updated; it is no metric of a step
ROW_METRICS = VALUE, RATIO = "rows/value", "rows/ratio"  # by which advantages are estimated anew; no metrics of a step


def td_target(batch: Transition, value: Float[Array, "*batch"], discount: Array | float) -> Float[Array, "*batch"]:
    """The reward and what the value at next_obs is worth by the batch's own discount, or by that of a step.

    Of sequences, [steps, batch], n_step rewards, or as many as there are up to the end of the episode or the sequence.
    """
    worth = discount if isinstance(batch.discount, tuple) else batch.discount
    target = batch.reward + worth * ~batch.terminated * value
    if batch.n_step == 1:
        return target
    last = batch.is_done.at[-1].set(True)

    def extend_return(_: Any, total: Array) -> Array:
        return jnp.where(last, target, batch.reward + discount * jnp.roll(total, -1, axis=0))

    return jax.lax.fori_loop(1, batch.n_step, extend_return, target)


def batch_mean(batch: Transition, of_each: Float[Array, "*batch"]) -> Float[Array, ""]:
    """The mean over a batch, of whose rows or sequences some may count more, those of members that are gone not."""
    return mean_of_active(batch, of_each if isinstance(batch.weight, tuple) else batch.weight * of_each)


def mean_of_active(batch: Transition, of_each: Float[Array, "*batch"]) -> Float[Array, ""]:
    """The mean over the steps that are learned from, but those of members that are gone."""
    return (
        of_each.mean()
        if isinstance(batch.members_done, tuple)
        else mean_of_rows(~batch.training_steps.members_done, of_each)
    )


def zero_inactive(batch: Transition, of_each: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The numbers of the steps that are learned from, 0 of members that are gone."""
    return (
        of_each if isinstance(batch.members_done, tuple) else jnp.where(batch.training_steps.members_done, 0, of_each)
    )


def choice_mask(space: Space, batch: Transition) -> Any:
    """Whether there was a choice at each step that is learned from, bool [*batch]; () where there always is one.

    A member that is gone has none, whatever its observation says.
    """
    t = batch.training_steps
    choice = has_choice(space, t.obs)
    if isinstance(t.members_done, tuple):
        return choice
    return ~t.members_done if isinstance(choice, tuple) else choice & ~t.members_done


def mean_of_rows(weight: Any, of_each: Shaped[Array, "*rows"]) -> Float[Array, ""]:
    """The mean over rows, of which some may count less than others, or not at all; () where all count alike."""
    if isinstance(weight, tuple):
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
    mean = value.mean() if isinstance(batch.members_done, tuple) else mean_of_active(batch, value.mean(-1))
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


def gae_targets(
    transitions: Transition, value: Array, next_value: Array, hyperparams: Hyperparams
) -> tuple[Array, Array]:
    """Generalized advantages of a trajectory [num_steps], and with them the targets of its value."""
    t, h = transitions, hyperparams
    advantage = gae(t.reward, value, next_value, t.terminated, t.is_done, h.discount, h.gae_lambda)
    return advantage, advantage + value


def ppo_loss(
    batch: Batch,
    log_prob: Float[Array, " rows"],
    value: Float[Array, " rows"],
    entropy: Float[Array, " rows"],
    hyperparams: Hyperparams,
) -> tuple[Float[Array, ""], Metrics]:
    """-min(ratio A, clip(ratio) A), half the squared error of the value, and the entropy, each with its weight.

    Schulman et al. 2017, arXiv:1707.06347, eq. 7 and 9, with a value that is clipped too.
    """
    h, mean = hyperparams, partial(mean_of_rows, batch.weight)
    log_ratio = log_prob - batch.log_prob
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - h.clip, 1 + h.clip)
    actor_loss = -mean(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
    near = batch.value + jnp.clip(value - batch.value, -h.value_clip, h.value_clip)
    critic_loss = 0.5 * mean(jnp.maximum((value - batch.target) ** 2, (near - batch.target) ** 2))
    moved = {"kl": mean(ratio - 1 - log_ratio), "clipped": mean(jnp.abs(ratio - 1) > h.clip)}
    return _total_loss(actor_loss, critic_loss, mean(entropy), h, moved)


def policy_gradient_loss(
    batch: Batch,
    log_prob: Float[Array, " rows"],
    value: Float[Array, " rows"],
    entropy: Float[Array, " rows"],
    hyperparams: Hyperparams,
) -> tuple[Float[Array, ""], Metrics]:
    """-log pi(a|s) A, half the squared error of the value, and the entropy, each with its weight."""
    mean = partial(mean_of_rows, batch.weight)
    actor_loss = -mean(log_prob * batch.advantage)
    critic_loss = 0.5 * mean((value - batch.target) ** 2)
    return _total_loss(actor_loss, critic_loss, mean(entropy), hyperparams, {})


def _total_loss(
    actor_loss: Array, critic_loss: Array, entropy: Array, hyperparams: Hyperparams, more: Metrics
) -> tuple[Float[Array, ""], Metrics]:
    """The two losses and the entropy, each with its weight, and the metrics that tell of them."""
    h = hyperparams
    loss = h.actor_weight * actor_loss + h.critic_weight * critic_loss - h.entropy_weight * entropy
    metrics = {"actor_loss": actor_loss, "critic_loss": critic_loss, "entropy": entropy} | more
    return loss, jax.lax.stop_gradient(metrics)
