"""Proximal policy optimization."""

from dataclasses import dataclass, replace

from flax import struct
from jaxtyping import Array, Float

from evorl.agents.losses import gae_targets, ppo_loss
from evorl.agents.train_state import DISCOUNT_PRIOR, LEARNING_RATE_PRIOR
from evorl.hyperparameters import Number, hyperparameter, linear_schedule
from evorl.priors import LogUniform, OneMinus, Uniform
from evorl.types import Batch, Metrics, Transition


@struct.dataclass
class PPOHyperparams:
    """Defaults: Schulman et al. 2017, table 3; those of the optimizer as in table 5 of EvoRL (arXiv:2501.15129)."""

    learning_rate: Number = hyperparameter(3e-4, 0, 1, "learning rate of policy and value", LEARNING_RATE_PRIOR)
    actor_weight: Number = hyperparameter(1.0, 0, about="weight of the policy's loss")
    critic_weight: Number = hyperparameter(1.0, 0, about="weight of the value's loss")
    entropy_weight: Number = hyperparameter(
        0.01, 0, about="weight of the policy's entropy, which is maximized", prior=LogUniform(1e-5, 1e-1)
    )
    discount: Number = hyperparameter(0.99, 0, 1, "discount factor", DISCOUNT_PRIOR)
    gae_lambda: Number = hyperparameter(
        0.95, 0, 1, "decay of generalized advantage estimation", OneMinus(LogUniform(1e-2, 3e-1))
    )
    clip: Number = hyperparameter(
        0.2, 0, about="how far from 1 the ratio of new to old probability still pays", prior=Uniform(0.05, 0.5)
    )
    value_clip: Number = hyperparameter(float("inf"), 0, about="how far the value may move from the old one")
    max_kl: Number = hyperparameter(float("inf"), 0, about="divergence from the old policy that ends the epochs")
    max_grad_norm: Number = hyperparameter(10.0, 0, about="gradients are clipped to this norm")
    reward_scale: Number = hyperparameter(1.0, 0, about="factor of rewards where they are learned from")
    anneal_steps: Number = hyperparameter(float("inf"), 1, about="env steps over which the learning rate falls to 0")

    def apply_schedule(self, env_steps: Array) -> "PPOHyperparams":
        return replace(self, learning_rate=linear_schedule(self.learning_rate, 0.0, env_steps, self.anneal_steps))


@dataclass(frozen=True)
class PPO:
    """Clipped policy and value losses with generalized advantages (Schulman et al. 2017, arXiv:1707.06347)."""

    def hyperparams(self) -> PPOHyperparams:
        return PPOHyperparams()

    def compute_advantages(
        self, transitions: Transition, ratio: Array, value: Array, next_value: Array, hyperparams: PPOHyperparams
    ) -> tuple[Array, Array]:
        del ratio
        return gae_targets(transitions, value, next_value, hyperparams)

    def loss(
        self, batch: Batch, log_prob: Array, value: Array, entropy: Array, hyperparams: PPOHyperparams
    ) -> tuple[Float[Array, ""], Metrics]:
        return ppo_loss(batch, log_prob, value, entropy, hyperparams)

    def early_stop(self, metrics: Metrics, hyperparams: PPOHyperparams) -> Array:
        return metrics["kl"] > hyperparams.max_kl
