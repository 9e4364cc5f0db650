"""Policy without a learning rule, for evolutionary search."""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.agents.base_agent import BaseAgent
from evorl.agents.train_state import TrainState
from evorl.networks.distributions import Distribution, Head, require_categorical
from evorl.networks.mlp import MLP, check_layers
from evorl.networks.network import FEEDFORWARD, FLAT, Core, Encoder, Network
from evorl.parts import part
from evorl.spaces import Box, mask_logits
from evorl.types import Key, Memory, Params


@struct.dataclass
class MLPPolicyState:
    actor: TrainState  # parameters only, no target or optimizer


@part
class MLPPolicy(BaseAgent):
    """Multilayer perceptron policy without value function or loss, for evolutionary search.

    Continuous actions are the tanh of the outputs, scaled to the bounds; they are the same with and without
    exploration. The greedy discrete action has the highest logit; with exploration, actions are sampled from
    the softmax of the logits.

    Args:
        hidden: Widths of the hidden layers; () makes the policy linear.
        activation: Name of the activation function: "relu", "leaky_relu", "tanh", "swish", "elu" or "gelu".
        encoder: Module that maps observations to features.
        core: Recurrent core, such as GRU, LSTM or S5; FEEDFORWARD for none.
    """

    hidden: tuple[int, ...] = (16, 16)
    activation: str = "relu"
    encoder: Encoder = FLAT
    core: Core = FEEDFORWARD

    def __post_init__(self) -> None:
        check_layers(self.hidden, self.activation)
        super().__post_init__()

    def check_spaces(self) -> None:
        """Raise OptionError unless the action space has a policy distribution."""
        Head(self.action_space)

    @property
    def head(self) -> Head:
        """Return the head, which maps network outputs to a distribution and its samples to actions."""
        return Head(self.action_space)

    @property
    def network(self) -> Network:
        """Return the network from observations to the parameters of the distribution."""
        body = MLP(self.hidden, self.head.size, self.activation)
        return Network(self.observation_space, body, self.encoder, self.core, mask_logits)

    def init(self, key: Key) -> MLPPolicyState:
        return MLPPolicyState(TrainState(self.network.init_params(key), None, None))

    def initial_memory(self) -> Memory:
        return self.core.initial_memory()

    def distribution(self, params: Params, obs: Any, memory: Memory) -> tuple[Distribution, Memory]:
        """Return the distribution of samples for one observation; `head` maps samples to actions.

        Args:
            params: Parameters of the network.
            obs: One observation.
            memory: Recurrent state before the observation.

        Returns:
            The distribution and the recurrent state after the observation.
        """
        memory, outputs = self.network.apply(params, memory, obs, method="step")
        return self.head.distribution(jnp.asarray(outputs), jnp.zeros(self.head.num_stds)), memory

    def action_probabilities(self, params: Params, obs: Any) -> Float[Array, " choices"]:
        return require_categorical(self.distribution(params, obs, self.initial_memory())[0]).probs()

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        if isinstance(self.action_space, Box):
            return self.mode(params, obs, memory, key)
        policy, memory = self.distribution(params, obs, memory)
        return self.head.to_action(policy.sample(key)), memory, {}

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        del key
        policy, memory = self.distribution(params, obs, memory)
        return self.head.to_action(policy.mode()), memory, {}
