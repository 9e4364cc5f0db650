"""Random policy, the baseline of normalized scores."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl import tree
from evorl.agents.base_agent import BaseAgent
from evorl.agents.train_state import TrainState
from evorl.parts import part
from evorl.spaces import choice_counts, group_sizes, mask_logits, random_action
from evorl.types import Batch, Key, Memory, Metrics, Params, Transition


@struct.dataclass
class RandomState:
    actor: TrainState


@part
class Random(BaseAgent):
    """Random policy: it samples uniformly from the valid actions, also as its greedy action, and learns nothing."""

    @property
    def groups(self) -> dict[str, int]:
        """Return the number of members of each group in a multi-agent environment; empty for a single agent."""
        return group_sizes(self.action_space)

    def init(self, key: Key) -> RandomState:
        del key
        return RandomState(TrainState(None, None, None))

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        del params
        return random_action(self.action_space, self.observation_space, obs, key), memory, {}

    mode = act

    def action_probabilities(self, params: Params, obs: Any) -> Float[Array, " choices"]:
        del params
        return jax.nn.softmax(
            mask_logits(self.observation_space, obs, jnp.zeros(sum(choice_counts(self.action_space))))
        )

    def build_batch(self, params: Params, transitions: Transition, acted_by_current_params: bool) -> Batch:
        del params, acted_by_current_params
        nothing = tree.zeros_like(transitions.reward)
        return Batch(None, None, *(nothing,) * 4, weight=jax.tree.map(lambda _: None, nothing))

    def loss(self, params: Params, batch: Batch) -> tuple[Array, Metrics]:
        del params, batch
        return jnp.float32(0), {}

    def update(self, state: RandomState, loss: Any) -> tuple[RandomState, Metrics]:
        del loss
        return state, {}

    def early_stop(self, metrics: Metrics) -> bool:
        del metrics
        return True
