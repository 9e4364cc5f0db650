"""Advantage actor-critic."""

from jaxtyping import Array

from evorl.agents.losses import gae_targets
from evorl.agents.policy_gradient import PolicyGradient
from evorl.agents.train_state import LEARNING_RATE_PRIOR
from evorl.parts import Number, number, part
from evorl.types import Transition


@part
class A2C(PolicyGradient):
    """The policy gradient with advantages, all environments in step (Mnih et al. 2016, arXiv:1602.01783, section 4).

    Defaults are theirs, but for Adam and its learning rate; a gae_lambda of 1 makes n-step returns.
    """

    learning_rate: Number = number(7e-4, 0, 1, "learning rate of policy and value", LEARNING_RATE_PRIOR)
    gae_lambda: Number = number(1.0, 0, 1, "decay of generalized advantage estimation")
    max_grad_norm: Number = number(0.5, 0, about="gradients are clipped to this norm")

    def estimate_advantages(
        self, transitions: Transition, ratio: Array, value: Array, next_value: Array
    ) -> tuple[Array, Array]:
        del ratio
        return gae_targets(transitions, value, next_value, self)
