"""Proximal policy optimization (PPO)."""

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array

from evorl.agents.losses import gae_targets, mean_of_rows
from evorl.agents.policy_gradient import PolicyGradient
from evorl.parts import Number, number, part
from evorl.priors import LogUniform, OneMinus, Uniform
from evorl.types import Batch, Metrics, Transition


@part
class PPO(PolicyGradient):
    """Proximal policy optimization (PPO): clipped policy and value losses, with GAE.

    The default learning rate, discount and lambda follow table 3 of the paper. The default clip range is the best
    one of its table 1.

    Source: Schulman et al. 2017, arXiv:1707.06347.
    """

    gae_lambda: Number = number(
        0.95, 0, 1, "lambda of generalized advantage estimation (GAE)", OneMinus(LogUniform(1e-2, 3e-1))
    )
    clip: Number = number(
        0.2,
        0,
        about="PPO clip range (epsilon) of the probability ratio around 1",
        prior=Uniform(0.05, 0.5),
    )
    value_clip: Number = number(
        float("inf"),
        0,
        about="clip range of the value around its old prediction, in the units of the value network (see value_scale)",
    )
    target_kl: Number = number(
        float("inf"), 0, about="mean KL divergence from the policy that acted, above which no further epoch starts"
    )

    def estimate_advantages(
        self, transitions: Transition, ratio: Array, value: Array, next_value: Array
    ) -> tuple[Array, Array]:
        """Return the GAE advantages of one trajectory and the targets of its value function."""
        del ratio
        return gae_targets(transitions, value, next_value, self)

    def loss_of_rows(self, batch: Batch, log_prob: Array, value: Array, entropy: Array) -> tuple[Array, Metrics]:
        """Return the weighted sum of the clipped policy loss, the clipped value loss and the entropy.

        The policy loss is -min(ratio A, clip(ratio) A), and the value loss half the squared error (equations
        7 and 9 of Schulman et al. 2017). In addition, the value is clipped around its old prediction, and the
        larger of the two errors counts.
        """
        mean = partial(mean_of_rows, batch.weight)
        log_ratio = log_prob - batch.log_prob
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
        actor_loss = -mean(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
        near = batch.value + jnp.clip(value - batch.value, -self.value_clip, self.value_clip)
        critic_loss = 0.5 * mean(jnp.maximum((value - batch.target) ** 2, (near - batch.target) ** 2))
        moved = {"kl": mean(ratio - 1 - log_ratio), "clipped": mean(jnp.abs(ratio - 1) > self.clip)}
        return self.weigh_losses(actor_loss, critic_loss, mean(entropy), moved)

    def early_stop(self, metrics: Metrics) -> Array:
        return metrics["kl"] > self.target_kl
