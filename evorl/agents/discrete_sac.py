"""Soft actor-critic (SAC) for discrete actions."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.agents.checks import require_discrete
from evorl.agents.losses import choice_mask, mean_of_rows, mse_critic_loss, td_target
from evorl.agents.sac_common import ENTROPY_UNIT, SACState, SoftActorCritic
from evorl.networks.distributions import Categorical
from evorl.networks.mlp import MLP
from evorl.networks.network import Network
from evorl.parts import Number, number, part
from evorl.spaces import ObsWithActionMask, action_from_indices, action_to_index, mask_logits
from evorl.types import Key, Memory, Metrics, Params, Transition


class DiscreteCritics(nn.Module):
    """Independent critics, each with a value for every action, [*batch, critics, choices]."""

    num_critics: int
    num_choices: int
    hidden: tuple[int, ...]
    layer_norm: bool

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch critics choices"]:
        values = [MLP(self.hidden, self.num_choices, layer_norm=self.layer_norm)(x) for _ in range(self.num_critics)]
        return jnp.stack(values, axis=-2)


@part
class DiscreteSAC(SoftActorCritic):
    """Soft actor-critic for discrete actions, whose expectations over actions are exact sums.

    The defaults follow the paper, except target_entropy: the value 0.98 of the paper keeps the policy nearly
    uniform.

    Source: Christodoulou 2019, arXiv:1910.07207.
    """

    target_entropy: Number = number(0.5, 0, 1, "target entropy, as a fraction of the entropy of the uniform policy")

    def check_spaces(self) -> None:
        """Raise OptionError unless the action space is Discrete."""
        require_discrete(self)

    @property
    def num_choices(self) -> int:
        """Return the number of actions."""
        return require_discrete(self).n

    @property
    def actor(self) -> Network:
        """Return the network from observations to action logits."""
        body = MLP(self.hidden, self.num_choices, layer_norm=self.layer_norm)
        return Network(self.observation_space, body, self.encoder, self.core, mask_logits)

    @property
    def critic(self) -> Network:
        """Return the network from observations to the values of all actions, [*batch, critics, choices]."""
        body = DiscreteCritics(self.num_critics, self.num_choices, self.hidden, self.layer_norm)
        return Network(self.observation_space, body, self.encoder, self.core, privileged=True)

    def init(self, key: Key) -> SACState:
        key_actor, key_critic = jax.random.split(key)
        params = self.actor.init_params(key_actor), self.critic.init_params(key_critic)
        return self.create_state(*params)

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        """Sample an action from the policy."""
        memory, logits = self.actor.apply(params, memory, obs, method="step")
        return action_from_indices(self.action_space, Categorical(jnp.asarray(logits)).sample(key)), memory, {}

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        del key
        memory, logits = self.actor.apply(params, memory, obs, method="step")
        return action_from_indices(self.action_space, Categorical(jnp.asarray(logits)).mode()), memory, {}

    def action_probabilities(self, params: Params, obs: Any) -> Float[Array, " choices"]:
        _, logits = self.actor.apply(params, self.initial_memory(), obs, method="step")
        return Categorical(jnp.asarray(logits)).probs()

    def policy(self, method: str, params: Params, batch: Transition) -> Categorical:
        """Return the policy on the training steps (method "outputs") or on their successors ("next_outputs")."""
        return Categorical(jnp.asarray(self.actor.apply(params, batch, batch.memory, method=method)))

    def values(self, method: str, params: Params, batch: Transition) -> Float[Array, "*batch critics choices"]:
        """Return Q_i(s, a) of every critic i and every action a.

        On sequences, each critic has its own recurrent state, which starts from the initial state at the
        start of the sequence.

        Args:
            method: "outputs" for s the observations of the training steps, "next_outputs" for s their
                successors.
            params: Parameters of the critics.
            batch: Transitions, or sequences of them.

        Returns:
            Values, shape [*batch, critics, choices].
        """
        return jnp.asarray(self.critic.apply(params, batch, self.critic.initial_memories(batch), method=method))

    def critic_target(self, state: SACState, batch: Transition) -> Float[Array, "*batch"]:
        """Return the target of the critics (eqs. 3 and 10 of the paper).

        The target is r + discount sum_a' pi(a'|s') (min_i Q_i'(s', a') - temperature log pi(a'|s')).

        Args:
            state: State of the agent.
            batch: Transitions, or sequences of them.

        Returns:
            Targets, shape [*batch].
        """
        log_probs = self.policy("next_outputs", state.actor.params, batch).log_probs()
        value = self.values("next_outputs", state.critic.target_params, batch).min(-2)
        value = (jnp.exp(log_probs) * (value - self.current_temperature(state) * log_probs)).sum(-1)
        return td_target(batch.training_steps, value, self.discount)

    def critic_loss(
        self, params: Params, state: SACState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the squared error against the target, summed over critics, mean over the batch."""
        del key
        target = jax.lax.stop_gradient(self.critic_target(state, batch))
        values = self.values("outputs", params, batch)
        choice = action_to_index(self.action_space, batch.training_steps.action)
        value = jnp.take_along_axis(values, choice[..., None, None], axis=-1)[..., 0]
        return mse_critic_loss(batch, value, target)

    def actor_loss(
        self, params: Params, state: SACState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return sum_a pi(a|s) (temperature log pi(a|s) - min_i Q_i(s, a)) as the loss of the actor (eq. 12).

        The loss is the mean over the rows in which several actions were valid.
        """
        del key
        policy = self.policy("outputs", params, batch)
        log_probs = policy.log_probs()
        value = self.values("outputs", state.critic.params, batch).min(-2)
        temperature = jax.lax.stop_gradient(self.current_temperature(state))
        weight = choice_mask(self.observation_space, batch)
        loss = mean_of_rows(weight, (jnp.exp(log_probs) * (temperature * log_probs - value)).sum(-1))
        entropy = mean_of_rows(weight, policy.entropy())
        metrics = {"actor_loss": loss, "entropy": entropy, ENTROPY_UNIT: self.max_entropy(batch, weight)}
        return loss, jax.lax.stop_gradient(metrics)

    def max_entropy(self, batch: Transition, weight: Any) -> Array | float:
        """Return the mean entropy of the policy that is uniform over the valid actions.

        Args:
            batch: Transitions, or sequences of them.
            weight: Weight of each row in the mean, [*batch]; None if all rows count equally.

        Returns:
            Entropy in nats; a Python float if the observations have no action mask.
        """
        if not isinstance(self.observation_space, ObsWithActionMask):
            return math.log(self.num_choices)
        legal = batch.training_steps.obs["legal"].sum(-1)
        return mean_of_rows(weight, jnp.log(jnp.where(legal > 0, legal, self.num_choices)))
