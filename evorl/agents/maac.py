"""Multi-actor-attention-critic (MAAC): one policy per member, and critics that attend to the other members."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from evorl.agents.base_agent import BaseAgent
from evorl.agents.losses import TD_ERROR, choice_mask, gather_q, td_target
from evorl.agents.members import (
    TrainStates,
    init_member_params,
    member_critic_loss,
    member_transitions,
    merge_group_metrics,
    sum_member_means,
    vmap_members,
)
from evorl.agents.train_state import ADAM, DISCOUNT_PRIOR, LEARNING_RATE_PRIOR, LossFn, Optimizer, TrainState
from evorl.errors import OptionError, require, require_int
from evorl.networks.attention import Attention, Embedding
from evorl.networks.distributions import Categorical
from evorl.networks.features import features
from evorl.networks.mlp import MLP, check_layers
from evorl.networks.network import FLAT, Encoder, Network
from evorl.parts import Number, number, part
from evorl.spaces import (
    Discrete,
    Space,
    action_from_indices,
    action_to_index,
    group_sizes,
    groups,
    mask_logits,
    split_key,
)
from evorl.types import Key, Memory, Metrics, Params, Transition


@struct.dataclass
class MAACState:
    actor: TrainStates
    critic: TrainState  # of the critics of all members


@part
class MAAC(BaseAgent):
    """Multi-actor-attention-critic for multi-agent environments with discrete actions.

    Q_i = f_i(g_i(o_i), x_i), where x_i is the attention of member i to the embeddings e_j(o_j, a_j) of the
    other members j. The critic gives the values of all actions of i at once, from which the counterfactual
    baseline is computed. All members share the attention heads. The defaults follow the paper and its code.

    Args:
        hidden: Widths of the hidden layers of the policies.
        width: Width of the critic's embeddings and hidden layers, a multiple of heads.
        heads: Number of attention heads.
        shared: Whether the members of a group share f, g, e and the policy; otherwise each member has its
            own.
        encoder: Module that maps observations to features.
        optimizer: Gradient transformation without a learning rate.

    Source: Iqbal & Sha 2019, arXiv:1810.02912.
    """

    hidden: tuple[int, ...] = (128, 128)
    width: int = 128
    heads: int = 4
    shared: bool = False
    encoder: Encoder = FLAT
    optimizer: Optimizer = ADAM
    actor_lr: Number = number(1e-3, 0, 1, "learning rate of the actors", LEARNING_RATE_PRIOR)
    critic_lr: Number = number(1e-3, 0, 1, "learning rate of the critics", LEARNING_RATE_PRIOR)
    discount: Number = number(0.99, 0, 1, "discount factor", DISCOUNT_PRIOR)
    tau: Number = number(1e-3, 0, 1, "step size of the soft update of the target networks")
    temperature: Number = number(0.01, 0, about="entropy coefficient (temperature)")
    logit_weight: Number = number(1e-3, 0, about="weight of the penalty on the mean squared attention logits of a head")
    actor_grad_norm: Number = number(0.5, 0, about="gradients of each actor are clipped to this norm")
    critic_grad_norm: Number = number(
        10.0, 0, about="the gradient of all critics is clipped to this norm times the number of members"
    )

    def __post_init__(self) -> None:
        check_layers(self.hidden)
        require_int("heads", self.heads)
        whole = self.width >= 1 and self.width % self.heads == 0
        require(whole, "width", self.width, f"must be a multiple of heads, {self.heads}")
        super().__post_init__()

    def check_spaces(self) -> None:
        """Raise OptionError unless the environment is multi-agent and every member has a Discrete action space."""
        if not self.groups:
            raise OptionError(
                "env: must be a multi-agent environment for MAAC; use agent=discrete_sac for a single agent"
            )
        for name, of in groups(self.action_space).items():
            if not isinstance(of.space, Discrete):
                raise OptionError(f"MAAC needs discrete actions, not {of.space} of group {name}")

    @property
    def groups(self) -> dict[str, int]:
        """Return the number of members of each group."""
        return group_sizes(self.action_space)

    def spaces(self, name: str) -> tuple[Space, Discrete]:
        """Return the observation space and the action space of a member of a group.

        Args:
            name: Name of the group.
        """
        action: Any = groups(self.action_space)[name].space
        return groups(self.observation_space)[name].space, action

    def actor(self, name: str) -> Network:
        """Return the network from a member's observations to action logits.

        Args:
            name: Name of the member's group.
        """
        observed, action = self.spaces(name)
        return Network(observed, MLP(self.hidden, action.n, "leaky_relu"), self.encoder, mask_fn=mask_logits)

    def embedding(self, name: str) -> Network:
        """Return the embedding network of the critic: g of observations, or e of observations and actions.

        Args:
            name: Name of the member's group.
        """
        return Network(self.spaces(name)[0], Embedding(self.width), self.encoder)

    def value(self, name: str) -> MLP:
        """Return the network f, from a member's embedding g and its attention output to the values of its actions.

        Args:
            name: Name of the member's group.
        """
        return MLP((self.width,), self.spaces(name)[1].n, "leaky_relu")

    def init(self, key: Key) -> MAACState:
        key_attention, *keys = jax.random.split(key, 1 + len(self.groups))
        actors, parts = {}, {}
        wide = jnp.zeros(2 * self.width)
        for (name, n), key_group in zip(self.groups.items(), keys, strict=True):
            action = jnp.zeros(self.spaces(name)[1].n)
            embedding, value, actor = self.embedding(name), self.value(name), self.actor(name)
            makes = {
                "own": embedding.init_params,
                "pair": lambda key, embedding=embedding, action=action: embedding.init_params(key, action),
                "value": lambda key, value=value: value.init(key, wide),
            }
            key_actor, *key_parts = jax.random.split(key_group, 1 + len(makes))
            begun = lambda key, actor=actor: TrainState.create(actor.init_params(key), optimizer=self.optimizer)  # noqa: E731
            actors[name] = init_member_params(begun, key_actor, n, self.shared)
            parts[name] = {
                part: init_member_params(make, key, n, self.shared)
                for (part, make), key in zip(makes.items(), key_parts, strict=True)
            }
        everyone = jnp.zeros((sum(self.groups.values()), self.width))
        critic = {"attention": self.attention.init(key_attention, everyone, everyone), "groups": parts}
        apart = () if self.shared else tuple(self.groups)
        return MAACState(TrainStates.from_states(actors, apart), TrainState.create(critic, optimizer=self.optimizer))

    @property
    def attention(self) -> Attention:
        """Return the module with which each member attends to the other members."""
        return Attention(self.heads)

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        """Sample an action of each member from its policy."""
        return self.sample_actions(self.policies(params, obs, 0), key), memory, {}

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        del key
        policies = self.policies(params, obs, 0)
        return {name: action_from_indices(self.spaces(name)[1], of.mode()) for name, of in policies.items()}, memory, {}

    def policies(self, params: Params, obs: Any, axis: int) -> dict[str, Categorical]:
        """Return the policies of the members of each group.

        Args:
            params: Parameters of the actors, by group.
            obs: Observations, leaves [*batch, members, ...] by group.
            axis: Number of batch axes, which is also the index of the member axis.

        Returns:
            One distribution for each group, over [*batch, members].
        """
        actors = {name: vmap_members(self.actor(name).apply, self.shared, axis) for name in self.groups}
        return {name: Categorical(actor(params[name], obs[name])) for name, actor in actors.items()}

    def sample_actions(self, policies: dict[str, Categorical], key: Key) -> dict[str, Array]:
        """Sample an action for each member.

        Args:
            policies: Distributions by group, over [*batch, members].
            key: Random key.

        Returns:
            Actions by group, [*batch, members].
        """
        keys = split_key(key, len(policies))
        return {
            name: action_from_indices(self.spaces(name)[1], of.sample(key))
            for (name, of), key in zip(policies.items(), keys, strict=True)
        }

    def values(
        self, params: Params, obs: Any, actions: dict[str, Array], axis: int
    ) -> tuple[dict[str, Float[Array, "*batch members choices"]], Float[Array, ""]]:
        """Return Q_i of all actions of each member, given the actions of the other members.

        Args:
            params: Parameters of the critic.
            obs: Observations, leaves [*batch, members, ...] by group.
            actions: Actions by group, [*batch, members].
            axis: Number of batch axes, which is also the index of the member axis.

        Returns:
            The values by group, [*batch, members, choices], and the penalty on the attention logits, [].
        """
        own, pair = {}, {}
        for name in self.groups:
            embed, of = vmap_members(self.embedding(name).apply, self.shared, axis), params["groups"][name]
            own[name] = embed(of["own"], obs[name])
            pair[name] = embed(of["pair"], obs[name], features(self.spaces(name)[1], actions[name]))
        together = [jnp.concatenate([*of.values()], axis=-2) for of in (own, pair)]
        attended: Any = self.attention.apply(params["attention"], *together)
        heard, penalty = attended
        ends = np.cumsum([*self.groups.values()])[:-1]
        found = {}
        for name, of_others in zip(self.groups, jnp.split(heard, ends, axis=-2), strict=True):
            value = vmap_members(self.value(name).apply, self.shared, axis)
            seen = jnp.concatenate([own[name], of_others], axis=-1)
            found[name] = value(params["groups"][name]["value"], seen)
        return found, penalty

    def critic_loss(
        self, params: Params, state: MAACState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the squared TD errors plus the attention penalty, summed over members, mean over the batch.

        The target of member i is r + discount (Q_i'(o', a') - temperature log pi_i'(a_i'|o_i')). All next
        actions a' are sampled now from the target policies (section 3.2 of the paper).
        """
        t, axis = batch.training_steps, batch.training_steps.terminated.ndim
        policies = self.policies(state.actor.target_params, t.next_obs, axis)
        following = self.sample_actions(policies, key)
        after, _ = self.values(state.critic.target_params, t.next_obs, following, axis)
        values, penalty = self.values(params, t.obs, t.action, axis)
        total, found = self.logit_weight * penalty, {}
        for name, n in self.groups.items():
            rows = member_transitions(t, name, n)
            choice = action_to_index(self.spaces(name)[1], following[name])
            soft = gather_q(after[name], choice) - self.temperature * policies[name].log_prob(choice)
            target = jax.lax.stop_gradient(td_target(rows, soft, self.discount))
            value = gather_q(values[name], action_to_index(self.spaces(name)[1], t.action[name]))
            loss, metrics = member_critic_loss(rows, value[..., None], target)
            total += loss
            found[name] = metrics | {TD_ERROR: metrics[TD_ERROR].mean(-1)}
        return total, merge_group_metrics(found)

    def actor_loss(
        self, params: Params, state: MAACState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the policy gradient loss with a counterfactual baseline, mean over the rows with a choice.

        The loss of member i is log pi_i(a_i|o_i) times A = temperature log pi_i(a_i|o_i) - Q_i(o, a) + sum_b
        pi_i(b|o_i) Q_i(o, b, others). No gradient flows through A. All actions are sampled now (section 3.2
        of the paper).
        """
        t, axis = batch.training_steps, batch.training_steps.terminated.ndim
        policies = self.policies(params, t.obs, axis)
        actions = self.sample_actions(policies, key)
        values, _ = self.values(state.critic.params, t.obs, actions, axis)
        total, found = jnp.float32(0), {}
        for name, policy in policies.items():
            choice = action_to_index(self.spaces(name)[1], actions[name])
            log_prob = policy.log_prob(choice)
            baseline = (jnp.exp(policy.log_probs()) * values[name]).sum(-1)
            worse = self.temperature * log_prob - gather_q(values[name], choice) + baseline
            weight = choice_mask(self.spaces(name)[0], member_transitions(t, name, self.groups[name]))
            loss = sum_member_means(weight, log_prob * jax.lax.stop_gradient(worse), self.shared)
            total += loss
            members = 1 if self.shared else self.groups[name]
            entropy = sum_member_means(weight, policy.entropy(), self.shared) / members
            found[name] = {"actor_loss": loss / members, "entropy": entropy}
        return total, jax.lax.stop_gradient(merge_group_metrics(found))

    def update_critic(self, state: MAACState, loss: LossFn) -> tuple[MAACState, Metrics]:
        norm = self.critic_grad_norm * sum(self.groups.values())
        critic, metrics = state.critic.apply_gradients(loss, self.critic_lr, norm)
        return replace(state, critic=critic), metrics

    def update_actor(self, state: MAACState, loss: LossFn) -> tuple[MAACState, Metrics]:
        actor, metrics = state.actor.apply_gradients(loss, self.actor_lr, self.actor_grad_norm)
        return replace(state, actor=actor), metrics

    def update_targets(self, state: MAACState) -> MAACState:
        """Update the target networks of all actors and of the critic, after the update of the actors."""
        return MAACState(state.actor.polyak_update(self.tau), state.critic.polyak_update(self.tau))
