"""Soft actor-critic (SAC)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.agents.checks import require_action_vector
from evorl.agents.losses import choice_mask, mean_of_rows, min_over_critics, mse_critic_loss, td_target
from evorl.agents.sac_common import ENTROPY_UNIT, SACState, SoftActorCritic
from evorl.networks.distributions import Distribution, Head
from evorl.networks.features import num_features
from evorl.networks.mlp import MLP, SMALL_WEIGHTS, Critics
from evorl.networks.network import Network
from evorl.parts import Number, number, part
from evorl.priors import Uniform
from evorl.types import Key, Memory, Metrics, Params, Transition

LOG_STD_RANGE = (-5.0, 2.0)


@part
class SAC(SoftActorCritic):
    """Soft actor-critic (SAC) with twin critics and a stochastic policy.

    The temperature weighs the policy's entropy. It is learned from its initial value, or fixed. The defaults
    follow table 1 of arXiv:1812.05905.

    Source: Haarnoja et al. 2018, arXiv:1801.01290 and arXiv:1812.05905.
    """

    target_entropy: Number = number(
        -1.0,
        about="target entropy per action dimension, for actions in units of half their range",
        prior=Uniform(-2, 0),
    )

    def check_spaces(self) -> None:
        """Raise OptionError unless the action space is a vector of real numbers with finite bounds."""
        require_action_vector(self)
        Head(self.action_space)

    @property
    def head(self) -> Head:
        """Return the head, which maps actor outputs to a distribution and its samples to actions."""
        return Head(self.action_space)

    @property
    def actor(self) -> Network:
        """Return the network from observations to the means and log standard deviations of the policy."""
        body = MLP(self.hidden, 2 * self.head.size, layer_norm=self.layer_norm, weight_scale=SMALL_WEIGHTS)
        return Network(self.observation_space, body, self.encoder, self.core)

    @property
    def critic(self) -> Network:
        """Return the network from observations and actions to values, [*batch, critics].

        If the observation space is a PrivilegedObs, critics see the privileged state, the actor the observation.
        """
        body = Critics(self.num_critics, self.hidden, self.layer_norm, SMALL_WEIGHTS)
        return Network(self.observation_space, body, self.encoder, self.core, privileged=True)

    def init(self, key: Key) -> SACState:
        key_actor, key_critic = jax.random.split(key)
        action = jnp.zeros(num_features(self.action_space))
        params = self.actor.init_params(key_actor), self.critic.init_params(key_critic, action)
        return self.create_state(*params)

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        """Sample an action from the policy."""
        memory, outputs = self.actor.apply(params, memory, obs, method="step")
        return self.head.to_action(self.distribution(outputs).sample(key)), memory, {}

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        del key
        memory, outputs = self.actor.apply(params, memory, obs, method="step")
        return self.head.to_action(self.distribution(outputs).mode()), memory, {}

    def distribution(self, outputs: Any) -> Distribution:
        """Return the distribution of samples; `head` maps samples to actions.

        Args:
            outputs: Outputs of the actor, shape [*batch, 2 * action].
        """
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return self.head.distribution(mean, jnp.clip(log_std, *LOG_STD_RANGE))

    def policy(self, method: str, params: Params, batch: Transition) -> Distribution:
        """Return the policy on the training steps (method "outputs") or on their successors ("next_outputs")."""
        return self.distribution(self.actor.apply(params, batch, batch.memory, method=method))

    def values(self, method: str, params: Params, batch: Transition, action: Array) -> Float[Array, "*batch critics"]:
        """Return Q_i(s, a) of every critic i.

        On sequences, each critic has its own recurrent state, which starts from the initial state at the
        start of the sequence.

        Args:
            method: "outputs" for s the observations of the training steps, "next_outputs" for s their
                successors.
            params: Parameters of the critics.
            batch: Transitions, or sequences of them.
            action: Actions a, shape [*batch, action].

        Returns:
            Values, shape [*batch, critics].
        """
        return jnp.asarray(self.critic.apply(params, batch, self.critic.initial_memories(batch), action, method=method))

    def critic_target(self, state: SACState, batch: Transition, key: Key) -> Float[Array, "*batch"]:
        """Return the target of the critics (arXiv:1812.05905, eqs. 3 and 5).

        The target is r + discount (min_i Q_i'(s', a') - temperature log pi(a'|s')), with a' sampled now from
        the policy.

        Args:
            state: State of the agent.
            batch: Transitions, or sequences of them.
            key: Random key of the sample.

        Returns:
            Targets, shape [*batch].
        """
        policy = self.policy("next_outputs", state.actor.params, batch)
        sample = policy.sample(key)
        value = self.values("next_outputs", state.critic.target_params, batch, self.head.to_action(sample)).min(-1)
        value -= self.current_temperature(state) * policy.log_prob(sample)
        return td_target(batch.training_steps, value, self.discount)

    def critic_loss(
        self, params: Params, state: SACState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the squared error against the target, summed over critics, mean over the batch."""
        target = jax.lax.stop_gradient(self.critic_target(state, batch, key))
        value = self.values("outputs", params, batch, batch.training_steps.action)
        return mse_critic_loss(batch, value, target)

    def actor_loss(
        self, params: Params, state: SACState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return temperature log pi(a|s) - min_i Q_i(s, a), with a sampled now, mean over the batch (eq. 9)."""
        policy = self.policy("outputs", params, batch)
        sample = policy.sample(key)
        log_prob = policy.log_prob(sample)
        value = min_over_critics(self.values("outputs", state.critic.params, batch, self.head.to_action(sample)))
        loss = jax.lax.stop_gradient(self.current_temperature(state)) * log_prob - value
        weight = choice_mask(self.observation_space, batch)
        loss, entropy = mean_of_rows(weight, loss), -mean_of_rows(weight, log_prob)
        unit = {ENTROPY_UNIT: jnp.float32(self.head.size)}
        return loss, jax.lax.stop_gradient({"actor_loss": loss, "entropy": entropy} | unit)
