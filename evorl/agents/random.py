"""Actions at random, for normalized scores."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl import tree
from evorl.agents.train_state import TrainState
from evorl.spaces import Space, choice_counts, group_sizes, mask_logits, random_action
from evorl.types import Batch, Hyperparams, Key, Memory, Metrics, Params, Transition


@struct.dataclass
class RandomHyperparams:
    """None."""


@struct.dataclass
class RandomState:
    actor: TrainState


@dataclass(frozen=True)
class Random:
    """Actions drawn uniformly from the legal ones, also where others are greedy; it learns nothing."""

    observation_space: Space
    action_space: Space

    @property
    def groups(self) -> dict[str, int]:
        """How many members each group has, where it plays a game."""
        return group_sizes(self.action_space)

    def hyperparams(self) -> RandomHyperparams:
        return RandomHyperparams()

    def init(self, key: Key, hyperparams: Hyperparams) -> RandomState:
        del key, hyperparams
        return RandomState(TrainState((), (), ()))

    def initial_memory(self) -> Memory:
        return ()

    def act(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        del params, hyperparams
        return random_action(self.action_space, self.observation_space, obs, key), memory, {}

    mode = act

    def action_probabilities(self, params: Params, obs: Any, hyperparams: Hyperparams) -> Float[Array, " choices"]:
        del params, hyperparams
        return jax.nn.softmax(
            mask_logits(self.observation_space, obs, jnp.zeros(sum(choice_counts(self.action_space))))
        )

    def build_batch(
        self, params: Params, transitions: Transition, hyperparams: Hyperparams, acted_by_current_params: bool
    ) -> Batch:
        del params, hyperparams, acted_by_current_params
        nothing = tree.zeros_like(transitions.reward)
        return Batch((), (), *(nothing,) * 4, weight=jax.tree.map(lambda _: (), nothing))

    def loss(self, params: Params, batch: Batch, hyperparams: Hyperparams) -> tuple[Array, Metrics]:
        del params, batch, hyperparams
        return jnp.float32(0), {}

    def update(self, state: RandomState, loss: Any, hyperparams: Hyperparams) -> tuple[RandomState, Metrics]:
        del loss, hyperparams
        return state, {}

    def early_stop(self, metrics: Metrics, hyperparams: Hyperparams) -> bool:
        del metrics, hyperparams
        return True
