"""Behavior cloning."""

from dataclasses import replace
from typing import Any

import jax
from flax import struct
from jaxtyping import Array, Float

from evorl.agents.base_agent import BaseAgent
from evorl.agents.losses import batch_mean
from evorl.agents.train_state import ADAM, LEARNING_RATE_PRIOR, LossFn, Optimizer, TrainState
from evorl.networks.distributions import Distribution, Head, require_categorical
from evorl.networks.mlp import check_layers
from evorl.networks.network import FLAT, Encoder, Network
from evorl.networks.policy_value import PolicyHead
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.spaces import mask_logits
from evorl.types import Key, Memory, Metrics, Params, Transition


@struct.dataclass
class BCState:
    actor: TrainState  # the policy, without target network


@part
class BC(BaseAgent):
    """Behavior cloning: a policy trained by maximum likelihood on the actions in a replay buffer.

    The agent does not learn from rewards. `OffPolicy(env, BC(), num_steps=0)` learns only from the
    demonstrations with which its replay buffer was filled. By default, continuous actions have a normal
    distribution, clipped to their bounds. Its standard deviations are parameters.

    Args:
        hidden: Widths of the hidden layers; () makes the policy linear.
        activation: Name of the activation function: "relu", "leaky_relu", "tanh", "swish", "elu" or "gelu".
        distribution: Distribution of continuous actions: "normal" (clipped to the bounds) or "tanh_normal".
        encoder: Module that maps observations to features.
        optimizer: Gradient transformation without a learning rate.

    Source: Pomerleau 1991.
    """

    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    distribution: str = "normal"
    encoder: Encoder = FLAT
    optimizer: Optimizer = ADAM
    learning_rate: Number = number(1e-3, 0, 1, "learning rate", LEARNING_RATE_PRIOR)
    entropy_coef: Number = number(0.0, 0, about="coefficient of the entropy bonus", prior=LogUniform(1e-5, 1e-1))
    max_grad_norm: Number = number(10.0, 0, about="gradients are clipped to this norm")

    def __post_init__(self) -> None:
        check_layers(self.hidden, self.activation)
        super().__post_init__()

    def check_spaces(self) -> None:
        """Raise OptionError unless the action space has a policy distribution."""
        Head(self.action_space, self.distribution)

    @property
    def head(self) -> Head:
        """Return the head, which maps network outputs to a distribution and its samples to actions."""
        return Head(self.action_space, self.distribution)

    @property
    def network(self) -> Network:
        """Return the network from observations to the parameters of the distribution."""
        body = PolicyHead(self.head.size, self.head.num_stds, self.hidden, self.activation)
        return Network(self.observation_space, body, self.encoder)

    def init(self, key: Key) -> BCState:
        return BCState(TrainState.create(self.network.init_params(key), has_target=False, optimizer=self.optimizer))

    def policy(self, params: Params, obs: Any) -> Distribution:
        """Return the distribution of samples for observations, leaves [*batch, ...]; `head` maps samples to actions."""
        outputs: Any = self.network.apply(params, None, obs, method="step")[1]
        return self.head.distribution(mask_logits(self.observation_space, obs, outputs[0]), outputs[1])

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        """Sample an action from the policy."""
        return self.head.to_action(self.policy(params, obs).sample(key)), memory, {}

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        """Return the mode of the policy as an action."""
        del key
        return self.head.to_action(self.policy(params, obs).mode()), memory, {}

    def action_probabilities(self, params: Params, obs: Any) -> Float[Array, " choices"]:
        return require_categorical(self.policy(params, obs)).probs()

    def critic_loss(
        self, params: Params, state: BCState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the only loss of this agent: the negative log-likelihood of the actions, mean over the batch.

        The loss also contains the entropy bonus. Its metric is named "actor_loss", since there is no critic.
        """
        del state, key
        t = batch.training_steps
        policy = self.policy(params, t.obs)
        entropy = batch_mean(batch, policy.entropy())
        loss = -batch_mean(batch, policy.log_prob(self.head.from_action(t.action)))
        metrics = {"actor_loss": loss, "entropy": entropy}
        return loss - self.entropy_coef * entropy, jax.lax.stop_gradient(metrics)

    def update_critic(self, state: BCState, loss: LossFn) -> tuple[BCState, Metrics]:
        actor, metrics = state.actor.apply_gradients(loss, self.learning_rate, self.max_grad_norm)
        return replace(state, actor=actor), metrics

    def update_targets(self, state: BCState) -> BCState:
        return state
