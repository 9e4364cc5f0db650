"""Learner of IMPALA."""

from jaxtyping import Array

from evorl.agents.policy_gradient import PolicyGradient
from evorl.agents.train_state import LEARNING_RATE_PRIOR
from evorl.parts import Number, number, part
from evorl.returns import vtrace
from evorl.types import Transition


@part
class IMPALA(PolicyGradient):
    """Learner of IMPALA: the policy gradient with V-trace, on rollouts of an older policy.

    The workflow's `staleness` sets the age of that policy. The defaults follow table G.1 (Atari), with Adam,
    and with the weight 1 of the value loss, where the paper has 0.5.

    Source: Espeholt et al. 2018, arXiv:1802.01561.
    """

    learning_rate: Number = number(
        6e-4, 0, 1, "learning rate of the policy and the value function", LEARNING_RATE_PRIOR
    )
    trace_decay: Number = number(1.0, 0, 1, "lambda of V-trace")
    max_rho: Number = number(1.0, 0, about="rho-bar of V-trace: bound of the importance weight of a step's TD error")
    max_c: Number = number(
        1.0, 0, about="c-bar of V-trace: bound of the importance weights that carry TD errors back in time"
    )
    max_grad_norm: Number = number(40.0, 0, about="gradients are clipped to this norm")

    def estimate_advantages(
        self, transitions: Transition, ratio: Array, value: Array, next_value: Array
    ) -> tuple[Array, Array]:
        """Return the V-trace advantages of one trajectory and the targets of its value function."""
        t, corrections = transitions, (ratio, self.discount, self.trace_decay, self.max_rho, self.max_c)
        target, advantage = vtrace(t.reward, value, next_value, t.terminated, t.is_done, *corrections)
        return advantage, target
