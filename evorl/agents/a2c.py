"""Advantage actor-critic (A2C)."""

from jaxtyping import Array

from evorl.agents.losses import gae_targets
from evorl.agents.policy_gradient import PolicyGradient
from evorl.agents.train_state import LEARNING_RATE_PRIOR
from evorl.parts import Number, number, part
from evorl.types import Transition


@part
class A2C(PolicyGradient):
    """Advantage actor-critic (A2C): the policy gradient with advantages and synchronous environments.

    The defaults follow the paper, except for Adam and its learning rate. A gae_lambda of 1 gives n-step
    returns.

    Source: Mnih et al. 2016, arXiv:1602.01783, section 4.
    """

    learning_rate: Number = number(
        7e-4, 0, 1, "learning rate of the policy and the value function", LEARNING_RATE_PRIOR
    )
    gae_lambda: Number = number(1.0, 0, 1, "lambda of generalized advantage estimation (GAE)")
    max_grad_norm: Number = number(0.5, 0, about="gradients are clipped to this norm")

    def estimate_advantages(
        self, transitions: Transition, ratio: Array, value: Array, next_value: Array
    ) -> tuple[Array, Array]:
        """Return the GAE advantages of one trajectory and the targets of its value function."""
        del ratio
        return gae_targets(transitions, value, next_value, self)
