"""Soft actor-critic."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.agents.checks import require_action_vector
from evorl.agents.losses import choice_mask, mean_of_rows, min_over_critics, mse_critic_loss, td_target
from evorl.agents.sac_common import ENTROPY_UNIT, SACState, SoftActorCritic
from evorl.networks.distributions import Distribution, Head
from evorl.networks.features import num_features
from evorl.networks.mlp import MLP, Critics
from evorl.networks.network import Network
from evorl.parts import Number, number, part
from evorl.priors import Uniform
from evorl.types import Key, Memory, Metrics, Params, Transition

LOG_STD_RANGE = (-5.0, 2.0)


@part
class SAC(SoftActorCritic):
    """Twin critics and a policy that is also to be random (Haarnoja et al. 2018, arXiv:1801.01290 and 1812.05905).

    The temperature, which weighs its entropy, is learned from where it begins, or stays there. Defaults are those of
    arXiv:1812.05905, table 1.
    """

    target_entropy: Number = number(
        -1.0, about="entropy to learn, per real action in half its range", prior=Uniform(-2, 0)
    )

    def check_spaces(self) -> None:
        require_action_vector(self, "; see discrete_sac")
        Head(self.action_space)

    @property
    def head(self) -> Head:
        """From the numbers of the actor to a distribution, and from its samples to actions."""
        return Head(self.action_space)

    @property
    def actor(self) -> Network:
        """The numbers of the distribution from observations."""
        body = MLP(self.hidden, 2 * self.head.size, layer_norm=self.layer_norm)
        return Network(self.observation_space, body, self.encoder, self.core)

    @property
    def critic(self) -> Network:
        """Values from observation and action."""
        body = Critics(self.num_critics, self.hidden, self.layer_norm)
        return Network(self.observation_space, body, self.encoder, self.core)

    def init(self, key: Key) -> SACState:
        key_actor, key_critic = jax.random.split(key)
        action = jnp.zeros(num_features(self.action_space))
        params = self.actor.init_params(key_actor), self.critic.init_params(key_critic, action)
        return self.create_state(*params)

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        """An action drawn from the policy."""
        memory, numbers = self.actor.apply(params, memory, obs, method="step")
        return self.head.to_action(self.distribution(numbers).sample(key)), memory, {}

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        del key
        memory, numbers = self.actor.apply(params, memory, obs, method="step")
        return self.head.to_action(self.distribution(numbers).mode()), memory, {}

    def distribution(self, numbers: Any) -> Distribution:
        """Of the samples that actions come from, by the numbers of the actor."""
        mean, log_std = jnp.split(numbers, 2, axis=-1)
        return self.head.distribution(mean, jnp.clip(log_std, *LOG_STD_RANGE))

    def policy(self, method: str, params: Params, batch: Transition) -> Distribution:
        """The actor's on what is learned from ("values"), or on its successors ("next_values")."""
        return self.distribution(self.actor.apply(params, batch, batch.memory, method=method))

    def values(self, method: str, params: Params, batch: Transition, action: Array) -> Float[Array, "*batch critics"]:
        """Q_i(s, a) of every critic, whose own memory of a sequence begins with it; s as for the policy."""
        return jnp.asarray(self.critic.apply(params, batch, self.critic.initial_memories(batch), action, method=method))

    def critic_target(self, state: SACState, batch: Transition, key: Key) -> Float[Array, "*batch"]:
        """r + discount (min_i Q_i'(s', a') - temperature log pi(a'|s')), a' drawn now (arXiv:1812.05905, eqs. 3, 5)."""
        policy = self.policy("next_values", state.actor.params, batch)
        sample = policy.sample(key)
        value = self.values("next_values", state.critic.target_params, batch, self.head.to_action(sample)).min(-1)
        value -= self.current_temperature(state) * policy.log_prob(sample)
        return td_target(batch.training_steps, value, self.discount)

    def critic_loss(
        self, params: Params, state: SACState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Squared error of every critic against the target, summed over critics, mean over the batch."""
        target = jax.lax.stop_gradient(self.critic_target(state, batch, key))
        value = self.values("values", params, batch, batch.training_steps.action)
        return mse_critic_loss(batch, value, target)

    def actor_loss(
        self, params: Params, state: SACState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """temperature log pi(a|s) - min_i Q_i(s, a), a drawn now, mean over the batch (eq. 9)."""
        policy = self.policy("values", params, batch)
        sample = policy.sample(key)
        log_prob = policy.log_prob(sample)
        value = min_over_critics(self.values("values", state.critic.params, batch, self.head.to_action(sample)))
        loss = jax.lax.stop_gradient(self.current_temperature(state)) * log_prob - value
        weight = choice_mask(self.observation_space, batch)
        loss, entropy = mean_of_rows(weight, loss), -mean_of_rows(weight, log_prob)
        unit = {ENTROPY_UNIT: jnp.float32(self.head.size)}
        return loss, jax.lax.stop_gradient({"actor_loss": loss, "entropy": entropy} | unit)
