"""A policy without anything to learn it by: what evolution searches for."""

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
    actor: TrainState  # parameters alone


@part
class MLPPolicy(BaseAgent):
    """A multilayer perceptron: real actions are the tanh of its outputs, in the bounds, choices those of highest logit.

    Exploring, it draws choices by their logits; real actions stay as they are. Without hidden layers it is linear.
    """

    hidden: tuple[int, ...] = (16, 16)
    activation: str = "relu"
    encoder: Encoder = FLAT
    core: Core = FEEDFORWARD

    def __post_init__(self) -> None:
        check_layers(self.hidden, self.activation)
        super().__post_init__()

    def check_spaces(self) -> None:
        Head(self.action_space)

    @property
    def head(self) -> Head:
        """From the numbers of the network to a distribution, and from its samples to actions."""
        return Head(self.action_space)

    @property
    def network(self) -> Network:
        """The numbers of the distribution from observations."""
        body = MLP(self.hidden, self.head.size, self.activation)
        return Network(self.observation_space, body, self.encoder, self.core, mask_logits)

    def init(self, key: Key) -> MLPPolicyState:
        return MLPPolicyState(TrainState(self.network.init_params(key), None, None))

    def initial_memory(self) -> Memory:
        return self.core.initial_memory()

    def distribution(self, params: Params, obs: Any, memory: Memory) -> tuple[Distribution, Memory]:
        """Of the samples that actions come from, for one observation, and the memory after it."""
        memory, numbers = self.network.apply(params, memory, obs, method="step")
        return self.head.distribution(jnp.asarray(numbers), jnp.zeros(self.head.num_stds)), memory

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
