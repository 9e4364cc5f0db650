"""A policy without anything to learn it by: what evolution searches for."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.agents.train_state import TrainState
from evorl.networks.distributions import Distribution, Head, one_choice
from evorl.networks.mlp import MLP, check_layers
from evorl.networks.network import FEEDFORWARD, FLAT, Core, Encoder, Network
from evorl.spaces import Box, Space, masked
from evorl.types import Hyperparams, Key, Memory, Params


@struct.dataclass
class MLPPolicyHyperparams:
    """None."""


@struct.dataclass
class MLPPolicyState:
    actor: TrainState  # parameters alone


@dataclass(frozen=True)
class MLPPolicy:
    """A multilayer perceptron: real actions are the tanh of its outputs, in the bounds, choices those of highest logit.

    Exploring, it draws choices by their logits; real actions stay as they are. Without hidden layers it is linear.
    """

    observation_space: Space
    action_space: Space
    hidden: tuple[int, ...] = (16, 16)
    activation: str = "relu"
    encoder: Encoder = FLAT
    core: Core = FEEDFORWARD

    def __post_init__(self) -> None:
        check_layers(self.hidden, self.activation)
        Head(self.action_space)

    def hyperparams(self) -> MLPPolicyHyperparams:
        return MLPPolicyHyperparams()

    @property
    def head(self) -> Head:
        """From the numbers of the network to a distribution, and from its samples to actions."""
        return Head(self.action_space)

    @property
    def network(self) -> Network:
        """The numbers of the distribution from observations."""
        body = MLP(self.hidden, self.head.size, self.activation)
        return Network(self.observation_space, body, self.encoder, self.core, masked)

    def init(self, key: Key, hyperparams: Hyperparams) -> MLPPolicyState:
        del hyperparams
        return MLPPolicyState(TrainState(self.network.fresh(key), (), ()))

    def memory(self) -> Memory:
        return self.core.initial()

    def distribution(self, params: Params, obs: Any, memory: Memory) -> tuple[Distribution, Memory]:
        """Of the samples that actions come from, for one observation, and the memory after it."""
        memory, numbers = self.network.apply(params, memory, obs, method="step")
        return self.head.distribution(jnp.asarray(numbers), jnp.zeros(self.head.num_stds)), memory

    def probabilities(self, params: Params, obs: Any, hyperparams: Hyperparams) -> Float[Array, " choices"]:
        del hyperparams
        return one_choice(self.distribution(params, obs, self.memory())[0]).probs()

    def act(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        if isinstance(self.action_space, Box):
            return self.mode(params, obs, memory, key, hyperparams)
        policy, memory = self.distribution(params, obs, memory)
        return self.head.action(policy.sample(key)), memory, {}

    def mode(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        del key, hyperparams
        policy, memory = self.distribution(params, obs, memory)
        return self.head.action(policy.mode()), memory, {}
