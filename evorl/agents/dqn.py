"""Deep Q-learning."""

from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.agents.base_agent import BaseAgent
from evorl.agents.checks import require_choice
from evorl.agents.losses import TD_ERROR, batch_mean, gather_q, mean_of_active, td_target, zero_inactive
from evorl.agents.train_state import ADAM, DISCOUNT_PRIOR, LEARNING_RATE_PRIOR, LossFn, Optimizer, TrainState
from evorl.networks.mlp import MLP, check_layers
from evorl.networks.network import FEEDFORWARD, FLAT, Core, Encoder, Network
from evorl.parts import Number, number, part
from evorl.returns import rescale_value, unrescale_value
from evorl.schedules import Linear
from evorl.spaces import action_from_indices, action_to_index, mask_logits, random_action
from evorl.types import Key, Memory, Metrics, Params, Transition


class QNetwork(nn.Module):
    """The value of every choice; where dueling, as that of the state and advantages whose mean is 0."""

    num_choices: int
    hidden: tuple[int, ...]
    layer_norm: bool
    dueling: bool

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch choices"]:
        if not self.dueling:
            return MLP(self.hidden, self.num_choices, layer_norm=self.layer_norm)(x)
        hidden = self.hidden[-1:]
        if len(self.hidden) > 1:
            x = nn.relu(MLP(self.hidden[:-2], self.hidden[-2], layer_norm=self.layer_norm, name="trunk")(x))
        advantage = MLP(hidden, self.num_choices, layer_norm=self.layer_norm, name="advantage")(x)
        value = MLP(hidden, 1, layer_norm=self.layer_norm, name="value")(x)
        return value + advantage - advantage.mean(-1, keepdims=True)


@struct.dataclass
class DQNState:
    actor: TrainState  # the values, of which it takes the highest


@part
class DQN(BaseAgent):
    """Q-learning with a replay and a target network (Mnih et al. 2015, doi:10.1038/nature14236).

    Double: the target values the choice that the other network prefers (van Hasselt et al. 2016, arXiv:1509.06461).
    Dueling: arXiv:1511.06581. Rescaled: values on a scale that large returns hardly change (Pohlen et al. 2018,
    arXiv:1805.11593). With a core it is that of R2D2 (Kapturowski et al. 2019), and takes a replay of sequences.
    Exploration falls as in Mnih et al. 2015, in fewer steps; the targets follow softly.
    """

    hidden: tuple[int, ...] = (256, 256)
    layer_norm: bool = False
    double: bool = True
    dueling: bool = False
    rescaled: bool = False
    encoder: Encoder = FLAT
    core: Core = FEEDFORWARD
    optimizer: Optimizer = ADAM
    learning_rate: Number = number(3e-4, 0, 1, "learning rate", LEARNING_RATE_PRIOR)
    discount: Number = number(0.99, 0, 1, "discount factor", DISCOUNT_PRIOR)
    tau: Number = number(0.005, 0, 1, "fraction by which the target follows at each update")
    epsilon: Number = number(Linear(1.0, 0.05, over=50_000.0), 0, 1, "probability of a random action")
    max_error: Number = number(float("inf"), 0, about="error beyond which the loss grows linearly (Huber)")
    max_grad_norm: Number = number(10.0, 0, about="gradients are clipped to this norm")

    def __post_init__(self) -> None:
        check_layers(self.hidden)
        super().__post_init__()

    def check_spaces(self) -> None:
        require_choice(self)

    @property
    def network(self) -> Network:
        """Values of all choices from observations."""
        body = QNetwork(require_choice(self).n, self.hidden, self.layer_norm, self.dueling)
        return Network(self.observation_space, body, self.encoder, self.core, mask_logits)

    def init(self, key: Key) -> DQNState:
        return DQNState(TrainState.create(self.network.init_params(key), optimizer=self.optimizer))

    def initial_memory(self) -> Memory:
        return self.core.initial_memory()

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        """The greedy choice, or one at random with probability epsilon."""
        key_explore, key_choice = jax.random.split(key)
        greedy, memory, extras = self.mode(params, obs, memory, key)
        explores = jax.random.uniform(key_explore) < self.epsilon
        random = random_action(self.action_space, self.observation_space, obs, key_choice)
        return jnp.where(explores, random, greedy), memory, extras

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        del key
        memory, values = self.network.apply(params, memory, obs, method="step")
        return action_from_indices(self.action_space, jnp.asarray(values).argmax(-1).astype(jnp.int32)), memory, {}

    def action_probabilities(self, params: Params, obs: Any) -> Float[Array, " choices"]:
        values = jnp.asarray(self.network.apply(params, self.initial_memory(), obs, method="step")[1])
        greedy = jax.nn.one_hot(values.argmax(-1), values.shape[-1])
        random = jax.nn.softmax(mask_logits(self.observation_space, obs, jnp.zeros_like(values)))
        return greedy + self.epsilon * (random - greedy)

    def values(self, params: Params, batch: Transition) -> tuple[Float[Array, "*batch choices"], Array]:
        """Q(s, a) and Q(s', a) of all choices a."""
        both: Any = self.network.apply(params, batch, batch.memory, method="values_and_next")
        return both

    def q_taken(self, values: Float[Array, "*batch choices"], batch: Transition) -> Float[Array, "*batch"]:
        """The values of the choices that were made."""
        return gather_q(values, action_to_index(self.action_space, batch.training_steps.action))

    def best_next_q(self, target: Params, batch: Transition, next_values: Array) -> Float[Array, "*batch"]:
        """Q'(s', argmax_a Q(s', a)), or max_a Q'(s', a) unless double; following is Q(s', a)."""
        values = self.values(target, batch)[1]
        return gather_q(values, (next_values if self.double else values).argmax(-1))

    def bootstrap_target(self, batch: Transition, value: Array) -> Float[Array, "*batch"]:
        """r + discount * value, on the scale of the values."""
        if not self.rescaled:
            return td_target(batch.training_steps, value, self.discount)
        return rescale_value(td_target(batch.training_steps, unrescale_value(value), self.discount))

    def critic_target(self, state: DQNState, batch: Transition, next_values: Array) -> Float[Array, "*batch"]:
        """r + discount * the value of the best choice; following is Q(s', a)."""
        return self.bootstrap_target(batch, self.best_next_q(state.actor.target_params, batch, next_values))

    def critic_loss(
        self, params: Params, state: DQNState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Huber's loss of the values of the choices made, mean over the batch."""
        del key
        values, following = self.values(params, batch)
        target = self.critic_target(state, batch, following)
        return self.huber_loss(batch, self.q_taken(values, batch), target)

    def huber_loss(
        self, batch: Transition, value: Float[Array, "*batch"], target: Array
    ) -> tuple[Float[Array, ""], Metrics]:
        """Huber's loss of values against targets, mean over the batch."""
        error = value - jax.lax.stop_gradient(target)
        bounded = jnp.clip(error, -self.max_error, self.max_error)
        loss = batch_mean(batch, bounded * (error - 0.5 * bounded))
        return loss, {
            "critic_loss": loss,
            "value": mean_of_active(batch, value),
            TD_ERROR: zero_inactive(batch, jnp.abs(error)),
        }

    def update_critic(self, state: DQNState, loss: LossFn) -> tuple[DQNState, Metrics]:
        actor, metrics = state.actor.apply_gradients(loss, self.learning_rate, self.max_grad_norm)
        return replace(state, actor=actor), metrics

    def update_targets(self, state: DQNState) -> DQNState:
        return DQNState(state.actor.polyak_update(self.tau))
