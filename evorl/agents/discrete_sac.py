"""Soft actor-critic for choices."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.agents.checks import require_choice
from evorl.agents.losses import choice_mask, mean_of_rows, mse_critic_loss, td_target
from evorl.agents.sac_common import ENTROPY_UNIT, SACState, SoftActorCritic
from evorl.networks.distributions import Categorical
from evorl.networks.mlp import MLP
from evorl.networks.network import Network
from evorl.parts import Number, number, part
from evorl.spaces import ObsWithActionMask, action_from_indices, action_to_index, mask_logits
from evorl.types import Key, Memory, Metrics, Params, Transition


class DiscreteCritics(nn.Module):
    """Independent values of every choice, [..., num_critics, choices]."""

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
    """Soft actor-critic whose means over actions are sums over all choices (Christodoulou 2019, arXiv:1910.07207).

    Defaults are theirs, but for the target of the entropy, whose 0.98 leaves a policy nearly uniform.
    """

    target_entropy: Number = number(0.5, 0, 1, "entropy to learn, as part of that of a uniform policy")

    def check_spaces(self) -> None:
        require_choice(self, "; see sac")

    @property
    def num_choices(self) -> int:
        """How many there are."""
        return require_choice(self).n

    @property
    def actor(self) -> Network:
        """Logits from observations."""
        body = MLP(self.hidden, self.num_choices, layer_norm=self.layer_norm)
        return Network(self.observation_space, body, self.encoder, self.core, mask_logits)

    @property
    def critic(self) -> Network:
        """Values of all choices from observations."""
        body = DiscreteCritics(self.num_critics, self.num_choices, self.hidden, self.layer_norm)
        return Network(self.observation_space, body, self.encoder, self.core)

    def init(self, key: Key) -> SACState:
        key_actor, key_critic = jax.random.split(key)
        params = self.actor.init_params(key_actor), self.critic.init_params(key_critic)
        return self.create_state(*params)

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        """An action drawn from the policy."""
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
        """The actor's on what is learned from ("values"), or on its successors ("next_values")."""
        return Categorical(jnp.asarray(self.actor.apply(params, batch, batch.memory, method=method)))

    def values(self, method: str, params: Params, batch: Transition) -> Float[Array, "*batch critics choices"]:
        """Q_i(s, a) of every critic, whose own memory of a sequence begins with it, and all a; s as for the policy."""
        return jnp.asarray(self.critic.apply(params, batch, self.critic.initial_memories(batch), method=method))

    def critic_target(self, state: SACState, batch: Transition) -> Float[Array, "*batch"]:
        """r + discount sum_a' pi(a'|s') (min_i Q_i'(s', a') - temperature log pi(a'|s')) (eqs. 3 and 10)."""
        log_probs = self.policy("next_values", state.actor.params, batch).log_probs()
        value = self.values("next_values", state.critic.target_params, batch).min(-2)
        value = (jnp.exp(log_probs) * (value - self.current_temperature(state) * log_probs)).sum(-1)
        return td_target(batch.training_steps, value, self.discount)

    def critic_loss(
        self, params: Params, state: SACState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Squared error of every critic against the target, summed over critics, mean over the batch."""
        del key
        target = jax.lax.stop_gradient(self.critic_target(state, batch))
        values = self.values("values", params, batch)
        choice = action_to_index(self.action_space, batch.training_steps.action)
        value = jnp.take_along_axis(values, choice[..., None, None], axis=-1)[..., 0]
        return mse_critic_loss(batch, value, target)

    def actor_loss(
        self, params: Params, state: SACState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """sum_a pi(a|s) (temperature log pi(a|s) - min_i Q_i(s, a)), mean over the rows with a choice (eq. 12)."""
        del key
        policy = self.policy("values", params, batch)
        log_probs = policy.log_probs()
        value = self.values("values", state.critic.params, batch).min(-2)
        temperature = jax.lax.stop_gradient(self.current_temperature(state))
        weight = choice_mask(self.observation_space, batch)
        loss = mean_of_rows(weight, (jnp.exp(log_probs) * (temperature * log_probs - value)).sum(-1))
        entropy = mean_of_rows(weight, policy.entropy())
        metrics = {"actor_loss": loss, "entropy": entropy, ENTROPY_UNIT: self.max_entropy(batch, weight)}
        return loss, jax.lax.stop_gradient(metrics)

    def max_entropy(self, batch: Transition, weight: Any) -> Array | float:
        """The mean entropy of a policy that takes all legal choices alike, of rows with weight."""
        if not isinstance(self.observation_space, ObsWithActionMask):
            return math.log(self.num_choices)
        legal = batch.training_steps.obs["legal"].sum(-1)
        return mean_of_rows(weight, jnp.log(jnp.where(legal > 0, legal, self.num_choices)))
