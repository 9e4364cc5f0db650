"""The objective of PufferLib's trainer."""

from dataclasses import dataclass, replace

from flax import struct
from jaxtyping import Array, Float

from evorl.agents.losses import ppo_loss
from evorl.agents.train_state import DISCOUNT_PRIOR
from evorl.hyperparameters import Number, cosine_schedule, hyperparameter, linear_schedule
from evorl.priors import LogUniform, OneMinus, Uniform
from evorl.returns import vtrace
from evorl.types import Batch, Metrics, Transition


@struct.dataclass
class PufferHyperparams:
    """Defaults: PufferLib 3.0.0, config/default.ini, with Muon; it anneals over all of a training."""

    learning_rate: Number = hyperparameter(0.015, 0, 1, "learning rate of policy and value", LogUniform(1e-4, 1e-1))
    actor_weight: Number = hyperparameter(1.0, 0, about="weight of the policy's loss")
    critic_weight: Number = hyperparameter(2.0, 0, about="weight of the value's loss")
    entropy_weight: Number = hyperparameter(
        0.001, 0, about="weight of the policy's entropy, which is maximized", prior=LogUniform(1e-5, 1e-1)
    )
    discount: Number = hyperparameter(0.995, 0, 1, "discount factor", DISCOUNT_PRIOR)
    gae_lambda: Number = hyperparameter(0.9, 0, 1, "decay of the advantages", OneMinus(LogUniform(5e-3, 4e-1)))
    max_rho: Number = hyperparameter(
        1.0, 0, about="bound of the importance weight of a step's error", prior=Uniform(0.0, 5.0)
    )
    max_c: Number = hyperparameter(
        1.0, 0, about="bound of the importance weights that carry errors back", prior=Uniform(0.0, 5.0)
    )
    clip: Number = hyperparameter(
        0.2, 0, about="how far from 1 the ratio of new to old probability still pays", prior=Uniform(0.01, 1.0)
    )
    value_clip: Number = hyperparameter(
        0.2, 0, about="how far the value may move from the old one", prior=Uniform(0.1, 5.0)
    )
    priority_alpha: Number = hyperparameter(
        0.8, 0, about="exponent of priorities; 0: all segments alike", prior=OneMinus(LogUniform(1e-2, 0.9))
    )
    priority_beta: Number = hyperparameter(
        0.2, 0, 1, "how far weights correct for priorities at first; 1: wholly", OneMinus(LogUniform(1e-2, 0.9))
    )
    max_kl: Number = hyperparameter(float("inf"), 0, about="divergence from the old policy that ends the epochs")
    max_grad_norm: Number = hyperparameter(1.5, 0, about="gradients are clipped to this norm")
    reward_scale: Number = hyperparameter(1.0, 0, about="factor of rewards where they are learned from")
    anneal_steps: Number = hyperparameter(
        float("inf"), 1, about="env steps over which the learning rate falls to 0 and priority_beta rises to 1"
    )

    def apply_schedule(self, env_steps: Array) -> "PufferHyperparams":
        return replace(
            self,
            learning_rate=cosine_schedule(self.learning_rate, 0.0, env_steps, self.anneal_steps),
            priority_beta=linear_schedule(self.priority_beta, 1.0, env_steps, self.anneal_steps),
        )


@dataclass(frozen=True)
class Puffer:
    """PPO's losses on advantages with bounded importance weights (Suarez 2025, PufferLib 3.0).

    A_t = min(max_rho, ratio) (r + discount V' - V) + discount gae_lambda min(max_c, ratio) A_{t+1}: the target of
    V-trace less the value. Generalized advantages where all ratios are 1 and no bound is below 1.
    """

    def hyperparams(self) -> PufferHyperparams:
        return PufferHyperparams()

    def compute_advantages(
        self, transitions: Transition, ratio: Array, value: Array, next_value: Array, hyperparams: PufferHyperparams
    ) -> tuple[Array, Array]:
        t, h = transitions, hyperparams
        corrections = ratio, h.discount, h.gae_lambda, h.max_rho, h.max_c
        target, _ = vtrace(t.reward, value, next_value, t.terminated, t.is_done, *corrections)
        return target - value, target

    def loss(
        self, batch: Batch, log_prob: Array, value: Array, entropy: Array, hyperparams: PufferHyperparams
    ) -> tuple[Float[Array, ""], Metrics]:
        return ppo_loss(batch, log_prob, value, entropy, hyperparams)

    def early_stop(self, metrics: Metrics, hyperparams: PufferHyperparams) -> Array:
        return metrics["kl"] > hyperparams.max_kl
