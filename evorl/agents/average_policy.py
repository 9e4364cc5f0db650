"""Average policy of fictitious self-play: it imitates the actions that were taken."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl.agents.base_agent import BaseAgent
from evorl.agents.checks import require_discrete
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
    """Average policy, trained by cross-entropy to imitate the actions that were taken.

    The policy therefore selects each action as often as it was taken. It has no greedy action: `mode` samples
    as `act` does.

    Args:
        hidden: Widths of the hidden layers; () makes the policy linear.
        layer_norm: Whether to apply layer normalization before each activation.
        encoder: Module that maps observations to features.
        optimizer: Gradient transformation without a learning rate.

    Source: neural fictitious self-play (Heinrich & Silver 2016, arXiv:1603.01121).
    """

    hidden: tuple[int, ...] = (256, 256)
    layer_norm: bool = False
    encoder: Encoder = FLAT
    optimizer: Optimizer = ADAM
    learning_rate: Number = number(1e-3, 0, 1, "learning rate of the average policy", LEARNING_RATE_PRIOR)
    max_grad_norm: Number = number(10.0, 0, about="gradients of the average policy are clipped to this norm")

    def __post_init__(self) -> None:
        check_layers(self.hidden)
        super().__post_init__()

    def check_spaces(self) -> None:
        """Raise OptionError unless the action space is Discrete."""
        require_discrete(self)

    @property
    def network(self) -> Network:
        """Return the network from observations to action logits."""
        body = MLP(self.hidden, require_discrete(self).n, layer_norm=self.layer_norm)
        return Network(self.observation_space, body, self.encoder, mask_fn=mask_logits)

    def init(self, key: Key) -> AveragePolicyState:
        return AveragePolicyState(
            TrainState.create(self.network.init_params(key), has_target=False, optimizer=self.optimizer)
        )

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        """Sample an action from the policy."""
        return action_from_indices(self.action_space, self.distribution(params, obs).sample(key)), memory, {}

    mode = act

    def distribution(self, params: Params, obs: Any) -> Categorical:
        """Return the distribution of actions for a batch of observations.

        Args:
            params: Parameters of the network.
            obs: Observations, leaves [*batch, ...].
        """
        return Categorical(jnp.asarray(self.network.apply(params, obs)))

    def action_probabilities(self, params: Params, obs: Any) -> Float[Array, " choices"]:
        return self.distribution(params, obs).probs()

    def loss(self, params: Params, obs: Any, action: Int[Array, " rows"]) -> tuple[Float[Array, ""], Metrics]:
        """Return the cross-entropy loss -log pi(a|s), mean over the rows (eq. 2 of the paper)."""
        loss = -self.distribution(params, obs).log_prob(action_to_index(self.action_space, action)).mean()
        return loss, {"average_loss": loss}

    def update(self, state: AveragePolicyState, loss: LossFn) -> tuple[AveragePolicyState, Metrics]:
        actor, metrics = state.actor.apply_gradients(loss, self.learning_rate, self.max_grad_norm)
        return replace(state, actor=actor), metrics
