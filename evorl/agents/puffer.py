"""Objective of PufferLib's trainer."""

from jaxtyping import Array

from evorl.agents.ppo import PPO
from evorl.agents.train_state import DISCOUNT_PRIOR
from evorl.parts import Number, number, part
from evorl.priors import LogUniform, OneMinus, Uniform
from evorl.returns import vtrace
from evorl.types import Transition


@part
class Puffer(PPO):
    """PPO losses on advantages with bounded importance weights, as in PufferLib 3.0.

    A_t = min(max_rho, ratio) (r + discount V' - V) + discount gae_lambda min(max_c, ratio) A_{t+1}, which is
    the V-trace target minus the value. It equals GAE if all ratios are 1 and neither bound is below 1.

    The defaults follow PufferLib 3.0.0, config/default.ini, where the optimizer is Muon. Only the learning
    rate differs: PufferLib's is Cosine(0.015, 0, over=env_steps) over the whole training.

    Source: Suarez 2025, PufferLib 3.0.
    """

    learning_rate: Number = number(
        0.015, 0, 1, "learning rate of the policy and the value function", LogUniform(1e-4, 1e-1)
    )
    value_coef: Number = number(2.0, 0, about="coefficient of the value loss")
    entropy_coef: Number = number(0.001, 0, about="coefficient of the entropy bonus", prior=LogUniform(1e-5, 1e-1))
    discount: Number = number(0.995, 0, 1, "discount factor", DISCOUNT_PRIOR)
    max_grad_norm: Number = number(1.5, 0, about="gradients are clipped to this norm")
    gae_lambda: Number = number(0.9, 0, 1, "lambda: decay of the advantages", OneMinus(LogUniform(5e-3, 4e-1)))
    clip: Number = number(
        0.2,
        0,
        about="PPO clip range (epsilon) of the probability ratio around 1",
        prior=Uniform(0.01, 1.0),
    )
    value_clip: Number = number(
        0.2, 0, about="clip range of the value around its old prediction", prior=Uniform(0.1, 5.0)
    )
    max_rho: Number = number(
        1.0, 0, about="rho-bar of V-trace: bound of the importance weight of a step's TD error", prior=Uniform(0.0, 5.0)
    )
    max_c: Number = number(
        1.0,
        0,
        about="c-bar of V-trace: bound of the importance weights that carry TD errors back in time",
        prior=Uniform(0.0, 5.0),
    )

    def estimate_advantages(
        self, transitions: Transition, ratio: Array, value: Array, next_value: Array
    ) -> tuple[Array, Array]:
        """Return the advantages of one trajectory, with bounded importance weights, and the V-trace targets."""
        t, corrections = transitions, (ratio, self.discount, self.gae_lambda, self.max_rho, self.max_c)
        target, _ = vtrace(t.reward, value, next_value, t.terminated, t.is_done, *corrections)
        return target - value, target
