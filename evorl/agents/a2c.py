"""Advantage actor-critic."""

from dataclasses import dataclass, replace

from flax import struct
from jaxtyping import Array, Float

from evorl.agents.losses import gae_targets, policy_gradient_loss
from evorl.agents.train_state import DISCOUNT_PRIOR, LEARNING_RATE_PRIOR
from evorl.hyperparameters import Number, hyperparameter, linear_schedule
from evorl.priors import LogUniform
from evorl.types import Batch, Metrics, Transition


@struct.dataclass
class A2CHyperparams:
    """Defaults: Mnih et al. 2016, but for Adam and its learning rate; a gae_lambda of 1 makes n-step returns."""

    learning_rate: Number = hyperparameter(7e-4, 0, 1, "learning rate of policy and value", LEARNING_RATE_PRIOR)
    actor_weight: Number = hyperparameter(1.0, 0, about="weight of the policy's loss")
    critic_weight: Number = hyperparameter(1.0, 0, about="weight of the value's loss")
    entropy_weight: Number = hyperparameter(
        0.01, 0, about="weight of the policy's entropy, which is maximized", prior=LogUniform(1e-5, 1e-1)
    )
    discount: Number = hyperparameter(0.99, 0, 1, "discount factor", DISCOUNT_PRIOR)
    gae_lambda: Number = hyperparameter(1.0, 0, 1, "decay of generalized advantage estimation")
    max_grad_norm: Number = hyperparameter(0.5, 0, about="gradients are clipped to this norm")
    reward_scale: Number = hyperparameter(1.0, 0, about="factor of rewards where they are learned from")
    anneal_steps: Number = hyperparameter(float("inf"), 1, about="env steps over which the learning rate falls to 0")

    def apply_schedule(self, env_steps: Array) -> "A2CHyperparams":
        return replace(self, learning_rate=linear_schedule(self.learning_rate, 0.0, env_steps, self.anneal_steps))


@dataclass(frozen=True)
class A2C:
    """The policy gradient with advantages, all environments in step (Mnih et al. 2016, arXiv:1602.01783, section 4)."""

    def hyperparams(self) -> A2CHyperparams:
        return A2CHyperparams()

    def compute_advantages(
        self, transitions: Transition, ratio: Array, value: Array, next_value: Array, hyperparams: A2CHyperparams
    ) -> tuple[Array, Array]:
        del ratio
        return gae_targets(transitions, value, next_value, hyperparams)

    def loss(
        self, batch: Batch, log_prob: Array, value: Array, entropy: Array, hyperparams: A2CHyperparams
    ) -> tuple[Float[Array, ""], Metrics]:
        return policy_gradient_loss(batch, log_prob, value, entropy, hyperparams)

    def early_stop(self, metrics: Metrics, hyperparams: A2CHyperparams) -> bool:
        del metrics, hyperparams
        return False
