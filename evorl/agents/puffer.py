"""The objective of PufferLib's trainer."""

from jaxtyping import Array

from evorl.agents.ppo import PPO
from evorl.agents.train_state import DISCOUNT_PRIOR
from evorl.parts import Number, number, part
from evorl.priors import LogUniform, OneMinus, Uniform
from evorl.returns import vtrace
from evorl.types import Transition


@part
class Puffer(PPO):
    """PPO's losses on advantages with bounded importance weights (Suarez 2025, PufferLib 3.0).

    A_t = min(max_rho, ratio) (r + discount V' - V) + discount gae_lambda min(max_c, ratio) A_{t+1}: the target of
    V-trace less the value. Generalized advantages where all ratios are 1 and no bound is below 1. Defaults are those
    of PufferLib 3.0.0, config/default.ini, with Muon, but for the learning rate, which there is
    Cosine(0.015, 0, over=env_steps) over all of a training.
    """

    learning_rate: Number = number(0.015, 0, 1, "learning rate of policy and value", LogUniform(1e-4, 1e-1))
    critic_weight: Number = number(2.0, 0, about="weight of the value's loss")
    entropy_weight: Number = number(
        0.001, 0, about="weight of the policy's entropy, which is maximized", prior=LogUniform(1e-5, 1e-1)
    )
    discount: Number = number(0.995, 0, 1, "discount factor", DISCOUNT_PRIOR)
    max_grad_norm: Number = number(1.5, 0, about="gradients are clipped to this norm")
    gae_lambda: Number = number(0.9, 0, 1, "decay of the advantages", OneMinus(LogUniform(5e-3, 4e-1)))
    clip: Number = number(
        0.2,
        0,
        about="PPO clip range (epsilon): the objective is flat where the probability ratio is farther from 1",
        prior=Uniform(0.01, 1.0),
    )
    value_clip: Number = number(0.2, 0, about="how far the value may move from the old one", prior=Uniform(0.1, 5.0))
    max_rho: Number = number(1.0, 0, about="bound of the importance weight of a step's error", prior=Uniform(0.0, 5.0))
    max_c: Number = number(
        1.0, 0, about="bound of the importance weights that carry errors back", prior=Uniform(0.0, 5.0)
    )

    def estimate_advantages(
        self, transitions: Transition, ratio: Array, value: Array, next_value: Array
    ) -> tuple[Array, Array]:
        t, corrections = transitions, (ratio, self.discount, self.gae_lambda, self.max_rho, self.max_c)
        target, _ = vtrace(t.reward, value, next_value, t.terminated, t.is_done, *corrections)
        return target - value, target
