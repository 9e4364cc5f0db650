"""Deep Q-learning (DQN)."""

from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.agents.base_agent import BaseAgent
from evorl.agents.checks import require_discrete
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
    """Network of the values of all actions; with `dueling`, the state value plus advantages of mean 0."""

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
            x = MLP(self.hidden[:-2], self.hidden[-2], layer_norm=self.layer_norm, name="trunk")(x)
            x = nn.relu(nn.LayerNorm(name="trunk_norm")(x) if self.layer_norm else x)
        advantage = MLP(hidden, self.num_choices, layer_norm=self.layer_norm, name="advantage")(x)
        value = MLP(hidden, 1, layer_norm=self.layer_norm, name="value")(x)
        return value + advantage - advantage.mean(-1, keepdims=True)


@struct.dataclass
class DQNState:
    actor: TrainState  # the Q-network, which also acts


@part
class DQN(BaseAgent):
    """Deep Q-learning with a replay buffer and a target network (Mnih et al. 2015, doi:10.1038/nature14236).

    With a recurrent core the agent is R2D2 (Kapturowski et al. 2019) and needs a sequence replay. Epsilon
    decreases as in Mnih et al. 2015, but over fewer steps. The target network follows by soft updates.

    Args:
        hidden: Widths of the hidden layers; () makes the values linear.
        layer_norm: Whether to apply layer normalization before each activation.
        double: Double Q-learning: the target network evaluates the action that the online network prefers
            (van Hasselt et al. 2016, arXiv:1509.06461).
        dueling: Dueling network: separate streams for the state value and the advantages (arXiv:1511.06581).
        rescaled: Whether to learn values on a compressed scale, on which large returns differ little (Pohlen
            et al. 2018, arXiv:1805.11593).
        encoder: Module that maps observations to features.
        core: Recurrent core, such as GRU, LSTM or S5; FEEDFORWARD for none.
        optimizer: Gradient transformation without a learning rate.
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
    tau: Number = number(0.005, 0, 1, "step size of the soft update of the target network")
    epsilon: Number = number(Linear(1.0, 0.05, over=50_000.0), 0, 1, "probability of a random action")
    huber_delta: Number = number(float("inf"), 0, about="TD error beyond which the loss grows linearly (Huber loss)")
    max_grad_norm: Number = number(10.0, 0, about="gradients are clipped to this norm")

    def __post_init__(self) -> None:
        check_layers(self.hidden)
        super().__post_init__()

    def check_spaces(self) -> None:
        """Raise OptionError unless the action space is Discrete."""
        require_discrete(self)

    @property
    def network(self) -> Network:
        """Return the network from observations to the values of all actions."""
        body = QNetwork(require_discrete(self).n, self.hidden, self.layer_norm, self.dueling)
        return Network(self.observation_space, body, self.encoder, self.core, mask_logits)

    def init(self, key: Key) -> DQNState:
        return DQNState(TrainState.create(self.network.init_params(key), optimizer=self.optimizer))

    def initial_memory(self) -> Memory:
        return self.core.initial_memory()

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        """Return the greedy action, or a random valid action with probability epsilon."""
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
        """Return Q(s, a) and Q(s', a) of all actions a.

        Args:
            params: Parameters of the network.
            batch: Transitions, or sequences of them.

        Returns:
            Values at the observations of the training steps and at their successors, each [*batch, choices].
        """
        both: Any = self.network.apply(params, batch, batch.memory, method="outputs_and_next")
        return both

    def q_taken(self, values: Float[Array, "*batch choices"], batch: Transition) -> Float[Array, "*batch"]:
        """Return the values of the actions that were taken, shape [*batch].

        Args:
            values: Values of all actions, shape [*batch, choices].
            batch: Transitions with the actions.
        """
        return gather_q(values, action_to_index(self.action_space, batch.training_steps.action))

    def best_next_q(self, target: Params, batch: Transition, next_values: Array) -> Float[Array, "*batch"]:
        """Return the value of the best action at the next observation.

        The value is Q'(s', argmax_a Q(s', a)) if `double`, else max_a Q'(s', a).

        Args:
            target: Parameters of the target network Q'.
            batch: Transitions, or sequences of them.
            next_values: Values Q(s', a) of the online network, shape [*batch, choices].

        Returns:
            Values, shape [*batch].
        """
        values = self.values(target, batch)[1]
        return gather_q(values, (next_values if self.double else values).argmax(-1))

    def bootstrap_target(self, batch: Transition, value: Array) -> Float[Array, "*batch"]:
        """Return r + discount * value, shape [*batch], on the scale on which values are learned.

        Args:
            batch: Transitions, or sequences of them.
            value: Value of each successor, on the same scale, shape [*batch].
        """
        if not self.rescaled:
            return td_target(batch.training_steps, value, self.discount)
        return rescale_value(td_target(batch.training_steps, unrescale_value(value), self.discount))

    def critic_target(self, state: DQNState, batch: Transition, next_values: Array) -> Float[Array, "*batch"]:
        """Return r + discount * the value of the best next action, shape [*batch].

        Args:
            state: State of the agent, with the target network.
            batch: Transitions, or sequences of them.
            next_values: Values Q(s', a) of the online network, shape [*batch, choices].
        """
        return self.bootstrap_target(batch, self.best_next_q(state.actor.target_params, batch, next_values))

    def critic_loss(
        self, params: Params, state: DQNState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the Huber loss of the values of the actions that were taken, mean over the batch."""
        del key
        values, following = self.values(params, batch)
        target = self.critic_target(state, batch, following)
        return self.huber_loss(batch, self.q_taken(values, batch), target)

    def huber_loss(
        self, batch: Transition, value: Float[Array, "*batch"], target: Array
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the Huber loss of values against targets, mean over the batch.

        Args:
            batch: Transitions, whose weights apply to the rows.
            value: Values of the actions that were taken, shape [*batch].
            target: Targets, shape [*batch]; no gradient flows through them.

        Returns:
            The loss [] and its metrics, with the absolute TD errors [*batch] for prioritized replay.
        """
        error = value - jax.lax.stop_gradient(target)
        bounded = jnp.clip(error, -self.huber_delta, self.huber_delta)
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
