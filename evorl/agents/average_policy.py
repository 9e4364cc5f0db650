"""A policy that learns how often each choice was made."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl.agents.base_agent import BaseAgent
from evorl.agents.checks import require_choice
from evorl.agents.train_state import ADAM, LEARNING_RATE_PRIOR, LossFn, Optimizer, TrainState
from evorl.networks.distributions import Categorical
from evorl.networks.mlp import MLP, check_layers
from evorl.networks.network import FLAT, Encoder, Network
from evorl.parts import Number, number, part
from evorl.spaces import action_from_indices, action_to_index, mask_logits
from evorl.types import Key, Memory, Metrics, Params


@struct.dataclass
class AveragePolicyState:
    actor: TrainState


@part
class AveragePolicy(BaseAgent):
    """A policy that imitates choices by cross entropy, and so draws them as often as they were made (arXiv:1603.01121).

    It has no other greedy action than one that is drawn.
    """

    hidden: tuple[int, ...] = (256, 256)
    layer_norm: bool = False
    encoder: Encoder = FLAT
    optimizer: Optimizer = ADAM
    learning_rate: Number = number(1e-3, 0, 1, "learning rate of the average policy", LEARNING_RATE_PRIOR)
    max_grad_norm: Number = number(10.0, 0, about="its gradients are clipped to this norm")

    def __post_init__(self) -> None:
        check_layers(self.hidden)
        super().__post_init__()

    def check_spaces(self) -> None:
        require_choice(self)

    @property
    def network(self) -> Network:
        """Logits from observations."""
        body = MLP(self.hidden, require_choice(self).n, layer_norm=self.layer_norm)
        return Network(self.observation_space, body, self.encoder, mask_fn=mask_logits)

    def init(self, key: Key) -> AveragePolicyState:
        return AveragePolicyState(
            TrainState.create(self.network.init_params(key), has_target=False, optimizer=self.optimizer)
        )

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        """A choice that is drawn from the policy."""
        return action_from_indices(self.action_space, self.distribution(params, obs).sample(key)), memory, {}

    mode = act

    def distribution(self, params: Params, obs: Any) -> Categorical:
        """Of the choices after observations."""
        return Categorical(jnp.asarray(self.network.apply(params, obs)))

    def action_probabilities(self, params: Params, obs: Any) -> Float[Array, " choices"]:
        return self.distribution(params, obs).probs()

    def loss(self, params: Params, obs: Any, action: Int[Array, " rows"]) -> tuple[Float[Array, ""], Metrics]:
        """-log pi(a|s), mean over rows (eq. 2 of the paper)."""
        loss = -self.distribution(params, obs).log_prob(action_to_index(self.action_space, action)).mean()
        return loss, {"average_loss": loss}

    def update(self, state: AveragePolicyState, loss: LossFn) -> tuple[AveragePolicyState, Metrics]:
        actor, metrics = state.actor.apply_gradients(loss, self.learning_rate, self.max_grad_norm)
        return replace(state, actor=actor), metrics
