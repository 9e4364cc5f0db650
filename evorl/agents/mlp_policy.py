"""A policy without anything to learn it by: what evolution searches for."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import struct

from evorl.agents.train_state import TrainState
from evorl.networks.distributions import Distribution, Head
from evorl.networks.features import features, num_features
from evorl.networks.mlp import MLP, check_layers
from evorl.spaces import Box, Space
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
    def network(self) -> MLP:
        """The numbers of the distribution from features."""
        return MLP(self.hidden, self.head.size, self.activation)

    def init(self, key: Key, hyperparams: Hyperparams) -> MLPPolicyState:
        del hyperparams
        params = self.network.init(key, jnp.zeros(num_features(self.observation_space)))
        return MLPPolicyState(TrainState(params, (), ()))

    def memory(self) -> Memory:
        return ()

    def distribution(self, params: Params, obs: Any) -> Distribution:
        """Of the samples that actions come from, for a batch of observations."""
        numbers = jnp.asarray(self.network.apply(params, features(self.observation_space, obs)))
        return self.head.distribution(numbers, jnp.zeros(self.head.num_stds))

    def act(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        if isinstance(self.action_space, Box):
            return self.mode(params, obs, memory, key, hyperparams)
        return self.head.action(self.distribution(params, obs).sample(key)), memory, {}

    def mode(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        del key, hyperparams
        return self.head.action(self.distribution(params, obs).mode()), memory, {}
