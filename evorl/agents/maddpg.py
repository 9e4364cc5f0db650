"""MADDPG: one policy per member, and critics of the observations and actions of all members."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from evorl.agents.base_agent import BaseAgent
from evorl.agents.checks import check_critics
from evorl.agents.differentiable_actions import DifferentiableActions
from evorl.agents.losses import TD_ERROR, choice_mask, td_target
from evorl.agents.members import (
    TrainStates,
    init_member_params,
    joint_observation,
    joint_observation_space,
    member_critic_loss,
    member_transitions,
    merge_group_metrics,
    repeat_for_members,
    sum_member_means,
    vmap_members,
)
from evorl.agents.train_state import ADAM, DISCOUNT_PRIOR, LEARNING_RATE_PRIOR, LossFn, Optimizer, TrainState
from evorl.errors import OptionError
from evorl.networks.features import features, num_features
from evorl.networks.mlp import MLP, Critics
from evorl.networks.network import FLAT, Encoder, Network
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.spaces import Box, Dict, Discrete, Space, get_visible_space, group_sizes, groups, split_key
from evorl.types import Key, Memory, Metrics, Params, Transition


@struct.dataclass
class MADDPGState:
    actor: TrainStates
    critic: TrainStates


@part
class MADDPG(BaseAgent):
    """Multi-agent deep deterministic policy gradient (MADDPG), with centralized critics.

    Discrete actions are sampled by adding Gumbel noise to the logits, and have the gradient of the softmax
    (arXiv:1611.01144). With several critics, the first one trains the policy, and the minimum over all is the
    bootstrap value. The defaults follow the paper and its code.

    Args:
        hidden: Widths of the hidden layers of all networks.
        num_critics: Number of critics of each member.
        centralized: Whether a critic sees the observations and actions of all members; otherwise those of its
            own member only.
        shared: Whether the members of a group share their networks; otherwise each member has its own. Shared
            centralized critics also see the index of the member that they evaluate.
        encoder: Module that maps observations to features.
        optimizer: Gradient transformation without a learning rate.

    Source: Lowe et al. 2017, arXiv:1706.02275.
    """

    hidden: tuple[int, ...] = (64, 64)
    num_critics: int = 1
    centralized: bool = True
    shared: bool = False
    encoder: Encoder = FLAT
    optimizer: Optimizer = ADAM
    actor_lr: Number = number(1e-2, 0, 1, "learning rate of the actors", LEARNING_RATE_PRIOR)
    critic_lr: Number = number(1e-2, 0, 1, "learning rate of the critics", LEARNING_RATE_PRIOR)
    discount: Number = number(0.95, 0, 1, "discount factor", DISCOUNT_PRIOR)
    tau: Number = number(0.01, 0, 1, "step size of the soft update of the target networks")
    exploration_noise: Number = number(
        0.1,
        0,
        10,
        "std of the exploration noise on continuous actions, in units of half the action range",
        LogUniform(0.02, 0.5),
    )
    logit_weight: Number = number(1e-3, 0, about="weight of the penalty on the mean squared outputs of an actor")
    max_grad_norm: Number = number(0.5, 0, about="gradients of each network are clipped to this norm")

    def __post_init__(self) -> None:
        check_critics(self)
        super().__post_init__()

    def check_spaces(self) -> None:
        """Raise OptionError unless the environment is multi-agent, with discrete or bounded vector actions."""
        if not self.groups:
            raise OptionError("env: must be a multi-agent environment for MADDPG; use agent=ddpg for a single agent")
        for name in self.groups:
            self.differentiable_actions(name)

    @property
    def unused_numbers(self) -> dict[str, str]:
        """Return the names of hyperparameters that have no effect, each with the reason."""
        known = () if self.action_space is None else self.groups
        has_noise = not known or any(isinstance(self.spaces(name)[1], Box) for name in known)
        return {} if has_noise else {"exploration_noise": "discrete actions, which are sampled"}

    @property
    def groups(self) -> dict[str, int]:
        """Return the number of members of each group."""
        return group_sizes(self.action_space)

    def spaces(self, name: str) -> tuple[Space, Space]:
        """Return the observation space and the action space of a member of a group.

        Args:
            name: Name of the group.
        """
        return groups(self.observation_space)[name].space, groups(self.action_space)[name].space

    def differentiable_actions(self, name: str) -> DifferentiableActions:
        """Return the map from the outputs of a group's actors to actions.

        Args:
            name: Name of the group.
        """
        return DifferentiableActions(*self.spaces(name))

    def actor(self, name: str) -> Network:
        """Return the network from a member's observations to logits, or to unbounded continuous actions.

        Args:
            name: Name of the member's group.
        """
        body = MLP(self.hidden, self.differentiable_actions(name).head.size)
        return Network(self.spaces(name)[0], body, self.encoder)

    def critic(self, name: str) -> Network:
        """Return the network from the observations and actions that a member's critic sees to values.

        Args:
            name: Name of the member's group.
        """
        return Network(self.critic_space(name), Critics(self.num_critics, self.hidden), self.encoder)

    def critic_space(self, name: str) -> Space:
        """Return the space of the observations that a member's critic sees.

        Args:
            name: Name of the member's group.
        """
        if not self.centralized:
            return get_visible_space(self.spaces(name)[0])
        everyone = joint_observation_space(self.observation_space)
        return Dict({"all": everyone, "id": Discrete(self.groups[name])}) if self.has_member_id(name) else everyone

    def has_member_id(self, name: str) -> bool:
        """Return whether the critics of a group see the index of the member that they evaluate.

        They do if they are centralized and shared by several members.

        Args:
            name: Name of the group.
        """
        return self.centralized and self.shared and self.groups[name] > 1

    def init(self, key: Key) -> MADDPGState:
        actors, critics = {}, {}
        widths = {name: num_features(self.spaces(name)[1]) for name in self.groups}
        together = sum(n * widths[name] for name, n in self.groups.items())
        for (name, n), key_group in zip(self.groups.items(), split_key(key, len(self.groups)), strict=True):
            key_actor, key_critic = jax.random.split(key_group)
            action = jnp.zeros(together if self.centralized else widths[name])
            critic = self.critic(name)
            actors[name] = self._init_train_state(self.actor(name).init_params, key_actor, n)
            critics[name] = self._init_train_state(
                lambda key, critic=critic, x=action: critic.init_params(key, x), key_critic, n
            )
        apart = () if self.shared else tuple(self.groups)
        return MADDPGState(TrainStates.from_states(actors, apart), TrainStates.from_states(critics, apart))

    def _init_train_state(self, make: Any, key: Key, n: int) -> TrainState:
        begin = lambda key: TrainState.create(make(key), optimizer=self.optimizer)  # noqa: E731
        return init_member_params(begin, key, n, self.shared)

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        """Sample discrete actions of each member, or add Gaussian noise to its deterministic continuous action."""
        actions, outputs = {}, self.actor_outputs(params, obs, 0)
        for (name, x), key_group in zip(outputs.items(), split_key(key, len(outputs)), strict=True):
            actions[name] = self.differentiable_actions(name).sample(x, obs[name], key_group, self.exploration_noise)
        return actions, memory, {}

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        del key
        outputs = self.actor_outputs(params, obs, 0)
        return {name: self.differentiable_actions(name).mode(x, obs[name]) for name, x in outputs.items()}, memory, {}

    def actor_outputs(self, params: Params, obs: Any, axis: int) -> dict[str, Float[Array, "*batch members size"]]:
        """Return the outputs of the actor networks.

        They are logits of discrete actions, or continuous actions before these are bounded.

        Args:
            params: Parameters of the actors, by group.
            obs: Observations, leaves [*batch, members, ...] by group.
            axis: Number of batch axes, which is also the index of the member axis.

        Returns:
            Outputs by group, [*batch, members, size], where size is the number of discrete actions or the
            length of the action vector.
        """
        actors = {name: vmap_members(self.actor(name).apply, self.shared, axis) for name in self.groups}
        return {name: actor(params[name], obs[name]) for name, actor in actors.items()}

    def sample_for_critic(self, outputs: dict[str, Array], obs: Any, key: Key) -> dict[str, Array]:
        """Return differentiable actions in the form that the critics take; discrete ones are sampled.

        Args:
            outputs: Outputs of the actor networks by group, [*batch, members, size].
            obs: Observations, leaves [*batch, members, ...] by group.
            key: Random key.

        Returns:
            Actions by group, [*batch, members, features].
        """
        keys = split_key(key, len(outputs))
        drawn = zip(outputs.items(), keys, strict=True)
        return {
            name: self.differentiable_actions(name).sample_for_critic(x, obs[name], key) for (name, x), key in drawn
        }

    def values(
        self, name: str, params: Params, obs: Any, actions: dict[str, Array], own: Array, axis: int
    ) -> Float[Array, "*batch members critics"]:
        """Return Q_i of each member of a group, for its own action and the actions of all other members.

        Args:
            name: Name of the group.
            params: Parameters of the group's critics.
            obs: Observations, leaves [*batch, members, ...] by group.
            actions: Actions of all groups, [*batch, members, features].
            own: Actions of the group that replace each member's own entry in `actions`, [*batch, members,
                features].
            axis: Number of batch axes, which is also the index of the member axis.

        Returns:
            Values, shape [*batch, members, critics].
        """
        n, batch = self.groups[name], own.shape[:-2]
        everyone = joint_observation(self.observation_space, obs)
        seen = repeat_for_members(everyone, axis, n) if self.centralized else everyone[name]
        if self.has_member_id(name):
            seen = {"all": seen, "id": jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (*batch, n))}
        joint = build_joint_actions(name, actions, own) if self.centralized else own
        return jnp.asarray(vmap_members(self.critic(name).apply, self.shared, axis)(params, seen, joint))

    def critic_loss(
        self, params: Params, state: MADDPGState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the squared error of each critic, mean over the batch.

        In the target, all members act by their target policies (eq. 6 of the paper).
        """
        t, axis = batch.training_steps, batch.training_steps.terminated.ndim
        actions = {name: features(self.spaces(name)[1], t.action[name]) for name in self.groups}
        following = self.sample_for_critic(
            self.actor_outputs(state.actor.target_params, t.next_obs, axis), t.next_obs, key
        )
        total, found = jnp.float32(0), {}
        for name, n in self.groups.items():
            rows = member_transitions(t, name, n)
            after = self.values(name, state.critic.target_params[name], t.next_obs, following, following[name], axis)
            target = jax.lax.stop_gradient(td_target(rows, after.min(-1), self.discount))
            value = self.values(name, params[name], t.obs, actions, actions[name], axis)
            loss, metrics = member_critic_loss(rows, value, target, self.shared)
            total += loss
            found[name] = metrics | {TD_ERROR: metrics[TD_ERROR].mean(-1)}
        return total, merge_group_metrics(found)

    def actor_loss(
        self, params: Params, state: MADDPGState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return -Q_i plus a penalty on the mean squared outputs of the actor, mean over the rows with a choice.

        Q_i is evaluated at the current action of member i and the stored actions of the other members (eq.
        5).
        """
        t, axis = batch.training_steps, batch.training_steps.terminated.ndim
        actions = {name: features(self.spaces(name)[1], t.action[name]) for name in self.groups}
        outputs = self.actor_outputs(params, t.obs, axis)
        own = self.sample_for_critic(outputs, t.obs, key)
        total, found = jnp.float32(0), {}
        for name, x in outputs.items():
            value = self.values(name, state.critic.params[name], t.obs, actions, own[name], axis)[..., 0]
            small = self.logit_weight * (x**2).mean(-1)
            weight = choice_mask(self.spaces(name)[0], member_transitions(t, name, self.groups[name]))
            loss = sum_member_means(weight, small - value, self.shared)
            total += loss
            found[name] = {"actor_loss": loss / (1 if self.shared else self.groups[name])}
        return total, jax.lax.stop_gradient(merge_group_metrics(found))

    def update_critic(self, state: MADDPGState, loss: LossFn) -> tuple[MADDPGState, Metrics]:
        critic, metrics = state.critic.apply_gradients(loss, self.critic_lr, self.max_grad_norm)
        return replace(state, critic=critic), metrics

    def update_actor(self, state: MADDPGState, loss: LossFn) -> tuple[MADDPGState, Metrics]:
        actor, metrics = state.actor.apply_gradients(loss, self.actor_lr, self.max_grad_norm)
        return replace(state, actor=actor), metrics

    def update_targets(self, state: MADDPGState) -> MADDPGState:
        """Update the target networks of all actors and critics, after the update of the actors (algorithm 1)."""
        return MADDPGState(state.actor.polyak_update(self.tau), state.critic.polyak_update(self.tau))


def build_joint_actions(name: str, actions: dict[str, Array], own: Array) -> Float[Array, "*batch members features"]:
    """Build the joint action for each member of a group: its own action and the given actions of the others."""
    *batch, n, _ = own.shape
    parts = []
    for other, taken in actions.items():
        each = jnp.broadcast_to(taken[..., None, :, :], (*batch, n, *taken.shape[-2:]))
        if other == name:
            each = jnp.where(np.eye(n, dtype=bool)[..., None], own[..., None, :], each)
        parts.append(each.reshape(*batch, n, -1))
    return jnp.concatenate(parts, axis=-1)
