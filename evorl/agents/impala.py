"""The learner of IMPALA."""

from dataclasses import dataclass, replace

from flax import struct
from jaxtyping import Array, Float

from evorl.agents.losses import policy_gradient_loss
from evorl.agents.train_state import DISCOUNT_PRIOR, LEARNING_RATE_PRIOR
from evorl.hyperparameters import Number, hyperparameter, linear_schedule
from evorl.priors import LogUniform
from evorl.returns import vtrace
from evorl.types import Batch, Metrics, Transition


@struct.dataclass
class IMPALAHyperparams:
    """Defaults: Espeholt et al. 2018, table G.1 (Atari), with Adam."""

    learning_rate: Number = hyperparameter(6e-4, 0, 1, "learning rate of policy and value", LEARNING_RATE_PRIOR)
    actor_weight: Number = hyperparameter(1.0, 0, about="weight of the policy's loss")
    critic_weight: Number = hyperparameter(1.0, 0, about="weight of the value's loss")
    entropy_weight: Number = hyperparameter(
        0.01, 0, about="weight of the policy's entropy, which is maximized", prior=LogUniform(1e-5, 1e-1)
    )
    discount: Number = hyperparameter(0.99, 0, 1, "discount factor", DISCOUNT_PRIOR)
    trace_decay: Number = hyperparameter(1.0, 0, 1, "lambda of V-trace")
    max_rho: Number = hyperparameter(1.0, 0, about="bound of the importance weight of a step's error")
    max_c: Number = hyperparameter(1.0, 0, about="bound of the importance weights that carry errors back")
    max_grad_norm: Number = hyperparameter(40.0, 0, about="gradients are clipped to this norm")
    reward_scale: Number = hyperparameter(1.0, 0, about="factor of rewards where they are learned from")
    anneal_steps: Number = hyperparameter(float("inf"), 1, about="env steps over which the learning rate falls to 0")

    def apply_schedule(self, env_steps: Array) -> "IMPALAHyperparams":
        return replace(self, learning_rate=linear_schedule(self.learning_rate, 0.0, env_steps, self.anneal_steps))


@dataclass(frozen=True)
class IMPALA:
    """The policy gradient with V-trace, on rollouts of an older policy (Espeholt et al. 2018, arXiv:1802.01561).

    How old it is, is the workflow's staleness.
    """

    def hyperparams(self) -> IMPALAHyperparams:
        return IMPALAHyperparams()

    def compute_advantages(
        self, transitions: Transition, ratio: Array, value: Array, next_value: Array, hyperparams: IMPALAHyperparams
    ) -> tuple[Array, Array]:
        t, h = transitions, hyperparams
        corrections = ratio, h.discount, h.trace_decay, h.max_rho, h.max_c
        target, advantage = vtrace(t.reward, value, next_value, t.terminated, t.is_done, *corrections)
        return advantage, target

    def loss(
        self, batch: Batch, log_prob: Array, value: Array, entropy: Array, hyperparams: IMPALAHyperparams
    ) -> tuple[Float[Array, ""], Metrics]:
        return policy_gradient_loss(batch, log_prob, value, entropy, hyperparams)

    def early_stop(self, metrics: Metrics, hyperparams: IMPALAHyperparams) -> bool:
        del metrics, hyperparams
        return False
