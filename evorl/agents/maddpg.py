"""MADDPG: for each member of a game a policy of what it sees, and a critic of what all see and do."""

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
from evorl.agents.losses import TD_ERROR, choice_mask, mse_critic_loss, td_target
from evorl.agents.members import (
    TrainStates,
    init_member_params,
    joint_observation,
    joint_observation_space,
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
from evorl.spaces import Dict, Discrete, Space, get_visible_space, group_sizes, groups, split_key
from evorl.types import Key, Memory, Metrics, Params, Transition


@struct.dataclass
class MADDPGState:
    actor: TrainStates
    critic: TrainStates


@part
class MADDPG(BaseAgent):
    """Deterministic policy gradients with critics that are centralized (Lowe et al. 2017, arXiv:1706.02275).

    A choice is drawn by Gumbel's noise on its logits, and has the gradient of the softmax (arXiv:1611.01144). Unless
    `centralized`, a critic sees and values what its member alone sees and does. Unless `shared`, each member has
    networks of its own, else each group; centralized critics see whom they value then. The first of several critics
    is what a policy climbs, the least of them what is bootstrapped. Defaults are theirs, and those of their code.
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
    tau: Number = number(0.01, 0, 1, "fraction by which targets follow at each update")
    explore_std: Number = number(0.1, 0, 10, "std of noise on real actions, in half ranges", LogUniform(0.02, 0.5))
    logit_weight: Number = number(1e-3, 0, about="of the mean square of the numbers that an actor gives")
    max_grad_norm: Number = number(0.5, 0, about="gradients of each network are clipped to this norm")

    def __post_init__(self) -> None:
        check_critics(self)
        super().__post_init__()

    def check_spaces(self) -> None:
        if not self.groups:
            raise OptionError("env: is for one agent, and MADDPG plays games, whose actions are by group; see ddpg")
        for name in self.groups:
            self.differentiable_actions(name)

    @property
    def groups(self) -> dict[str, int]:
        """How many members each group has."""
        return group_sizes(self.action_space)

    def spaces(self, name: str) -> tuple[Space, Space]:
        """What a member of a group observes and does."""
        return groups(self.observation_space)[name].space, groups(self.action_space)[name].space

    def differentiable_actions(self, name: str) -> DifferentiableActions:
        """What the numbers of a group's actors mean."""
        return DifferentiableActions(*self.spaces(name))

    def actor(self, name: str) -> Network:
        """Logits of choices, or real numbers before they are bounded, from what a member observes."""
        body = MLP(self.hidden, self.differentiable_actions(name).head.size)
        return Network(self.spaces(name)[0], body, self.encoder)

    def critic(self, name: str) -> Network:
        """Values of what the critic of a member sees, and of actions."""
        return Network(self.critic_space(name), Critics(self.num_critics, self.hidden), self.encoder)

    def critic_space(self, name: str) -> Space:
        """What the critic of a member sees besides actions."""
        if not self.centralized:
            return get_visible_space(self.spaces(name)[0])
        everyone = joint_observation_space(self.observation_space)
        return Dict({"all": everyone, "id": Discrete(self.groups[name])}) if self.has_member_id(name) else everyone

    def has_member_id(self, name: str) -> bool:
        """Whether critics of a group, which several members share, see whom they value."""
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
        """For each member choices that are drawn, or its greedy real action with normal noise."""
        actions, numbers = {}, self.actor_outputs(params, obs, 0)
        for (name, x), key_group in zip(numbers.items(), split_key(key, len(numbers)), strict=True):
            actions[name] = self.differentiable_actions(name).sample(x, obs[name], key_group, self.explore_std)
        return actions, memory, {}

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        del key
        numbers = self.actor_outputs(params, obs, 0)
        return {name: self.differentiable_actions(name).mode(x, obs[name]) for name, x in numbers.items()}, memory, {}

    def actor_outputs(self, params: Params, obs: Any, axis: int) -> dict[str, Float[Array, "*batch members size"]]:
        """What the actors give, for observations whose batch has so many axes."""
        actors = {name: vmap_members(self.actor(name).apply, self.shared, axis) for name in self.groups}
        return {name: actor(params[name], obs[name]) for name, actor in actors.items()}

    def sample_for_critic(self, numbers: dict[str, Array], obs: Any, key: Key) -> dict[str, Array]:
        """Actions as critics see them, [*batch, members, features], with a gradient."""
        keys = split_key(key, len(numbers))
        drawn = zip(numbers.items(), keys, strict=True)
        return {
            name: self.differentiable_actions(name).sample_for_critic(x, obs[name], key) for (name, x), key in drawn
        }

    def values(
        self, name: str, params: Params, obs: Any, actions: dict[str, Array], own: Array, axis: int
    ) -> Float[Array, "*batch members critics"]:
        """Q_i of each member of a group for its own action, [*batch, members, features], and those of the others."""
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
        """Squared error of each critic, mean over the batch; in its target all act by their own targets (eq. 6)."""
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
            loss, metrics = mse_critic_loss(rows, value, target)
            total += loss if self.shared else n * loss
            found[name] = metrics | {TD_ERROR: metrics[TD_ERROR].mean(-1)}
        return total, merge_group_metrics(found)

    def actor_loss(
        self, params: Params, state: MADDPGState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """-Q_i for its own action now and the others' as they were (eq. 5), and the mean square of what an actor gives.

        Means over the rows with a choice.
        """
        t, axis = batch.training_steps, batch.training_steps.terminated.ndim
        actions = {name: features(self.spaces(name)[1], t.action[name]) for name in self.groups}
        numbers = self.actor_outputs(params, t.obs, axis)
        own = self.sample_for_critic(numbers, t.obs, key)
        total, found = jnp.float32(0), {}
        for name, x in numbers.items():
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
        """All targets follow, after the actors have moved (algorithm 1)."""
        return MADDPGState(state.actor.polyak_update(self.tau), state.critic.polyak_update(self.tau))


def build_joint_actions(name: str, actions: dict[str, Array], own: Array) -> Float[Array, "*batch members features"]:
    """The actions of all as each member of a group is valued for: its own, and those of the others as given."""
    *batch, n, _ = own.shape
    parts = []
    for other, taken in actions.items():
        each = jnp.broadcast_to(taken[..., None, :, :], (*batch, n, *taken.shape[-2:]))
        if other == name:
            each = jnp.where(np.eye(n, dtype=bool)[..., None], own[..., None, :], each)
        parts.append(each.reshape(*batch, n, -1))
    return jnp.concatenate(parts, axis=-1)
