"""Team of agents, one for each group of a multi-agent environment."""

from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp

from evorl import tree
from evorl.agents.base_agent import BaseAgent
from evorl.agents.group_agent import (
    GroupAgent,
    MemberParams,
    TeamState,
    get_group,
    member_spaces,
    require_learner,
    take_member,
)
from evorl.agents.losses import TD_ERROR
from evorl.agents.member_observer import MemberObserver
from evorl.agents.members import TrainStates, member_transitions, merge_group_metrics
from evorl.agents.policy_gradient import PolicyGradient
from evorl.agents.random import Random
from evorl.agents.train_state import TrainState
from evorl.errors import OptionError, require, unknown_name_error
from evorl.parts import part
from evorl.spaces import group_sizes, groups, split_key
from evorl.types import (
    ActorCritic,
    Agent,
    Array,
    Batch,
    HasActionProbabilities,
    Key,
    Memory,
    Metrics,
    OffPolicyAgent,
    OnPolicyAgent,
    Params,
    Transition,
)

EMPTY_TRAIN_STATE = TrainState(None, None, None)


@part
class Team(BaseAgent):
    """Independent agents for the groups of a multi-agent environment: one for all groups, or one for each.

    An agent is a template, whose spaces are replaced by those of a member of its group. A centralized value
    function gives MAPPO (Yu et al. 2021, arXiv:2103.01955).

    Args:
        agents: One agent for all groups, or a mapping from each group name to its agent.
        shared: Whether the members of a group share parameters: for all groups, or by group name. Groups that
            are not named share them.
        obs_agent_id: Whether each member sees its index within its group.
        centralized: Whether the value functions, of PolicyGradient agents, see the state of the environment and
            the index of the member that they evaluate. The state is the joint observation, unless the
            environment defines one.
    """

    agents: Agent | Mapping[str, Agent] = field(metadata={"spaces": member_spaces})
    shared: bool | Mapping[str, bool] = True
    obs_agent_id: bool = False
    centralized: bool = False

    def check_spaces(self) -> None:
        """Raise OptionError unless the environment is multi-agent and the options name its groups.

        With `centralized`, all agents must be PolicyGradient agents.
        """
        if not self.groups:
            inside = "in a league or PSRO, each player is a single agent; use agent/inner=ppo or dqn"
            what = "env: must be a multi-agent environment for a team of agents (docs/howto/multi_agent.md)"
            raise OptionError(f"{what}; {inside}")
        for name, of in (("agents", self.agents), ("shared", self.shared)):
            for group in of if isinstance(of, Mapping) else ():
                if group not in self.groups:
                    raise unknown_name_error(f"group in {name}", group, self.groups)
        if isinstance(self.agents, Mapping):
            missing = [name for name in self.groups if name not in self.agents]
            require(
                not missing,
                "agents",
                list(self.agents),
                f"must have an agent for each group; missing: {', '.join(missing)}",
            )
        for side in self.group_agents.values():
            needs = "needs agents with a value function (PolicyGradient)"
            require(
                not self.centralized or isinstance(side.agent, PolicyGradient), "centralized", self.centralized, needs
            )

    def __hash__(self) -> int:
        parts = (tuple(sorted(x.items())) if isinstance(x, Mapping) else x for x in (self.agents, self.shared))
        return hash((self.observation_space, self.action_space, *parts, self.obs_agent_id, self.centralized))

    @property
    def discount(self) -> Any:
        """Return the discount factor of the agent that plays for all groups; not defined if each group has an agent."""
        agents: Any = self.agents
        return agents.discount

    @property
    def policy_delay(self) -> int:
        """Return the number of gradient steps of the critics for each one of the actors, the largest of any agent."""
        agents = self.agents.values() if isinstance(self.agents, Mapping) else [self.agents]
        return max(getattr(agent, "policy_delay", 1) for agent in agents)

    @cached_property
    def groups(self) -> dict[str, int]:
        """Return the number of members of each group."""
        return group_sizes(self.action_space)

    @cached_property
    def group_agents(self) -> dict[str, GroupAgent]:
        """Return the agent of each group."""
        return {name: self._create_group_agent(name) for name in self.groups}

    def _create_group_agent(self, name: str) -> GroupAgent:
        template = self.agents[name] if isinstance(self.agents, Mapping) else self.agents
        shared = self.shared.get(name, True) if isinstance(self.shared, Mapping) else self.shared
        spaces = {
            "observation_space": self.observer.member_space(name),
            "action_space": groups(self.action_space)[name].space,
        }
        known: Any = template
        return GroupAgent(replace(known, **spaces), self.groups[name], shared)

    @cached_property
    def observer(self) -> MemberObserver:
        """Return the object that computes the observations of the members."""
        return MemberObserver(self.observation_space, self.obs_agent_id, self.centralized)

    def init(self, key: Key) -> TeamState:
        states = {}
        for (name, side), key_side in zip(
            self.group_agents.items(), split_key(key, len(self.group_agents)), strict=True
        ):
            init = side.agent.init
            states[name] = init(key_side) if side.shared else jax.vmap(init)(split_key(key_side, side.n))
        return self._join_states(states)

    def _join_states(self, states: dict[str, Any]) -> TeamState:
        """Return the state of the team, from the states of its agents by group."""
        apart = tuple(name for name, side in self.group_agents.items() if not side.shared)
        rest = {name: replace(state, actor=EMPTY_TRAIN_STATE) for name, state in states.items()}
        return TeamState(TrainStates.from_states({name: state.actor for name, state in states.items()}, apart), rest)

    def initial_memory(self) -> Memory:
        return {name: tree.broadcast(side.agent.initial_memory(), side.n) for name, side in self.group_agents.items()}

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        """Return an action for each member, chosen by its group's agent, leaves [members, ...] by group."""
        return self._act_by_group("act", params, obs, memory, key)

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        return self._act_by_group("mode", params, obs, memory, key)

    def action_probabilities(self, params: Params, obs: Any) -> dict[str, Array]:
        """Return the probability of each action for each member, [members, choices] by group."""
        found = {}
        for name, side in self.group_agents.items():
            agent = require_learner(side.agent, HasActionProbabilities)
            each = jax.vmap(agent.action_probabilities, (side.vmap_axis, 0))
            found[name] = each(params[name], self.observer.observe(name, obs))
        return found

    def _act_by_group(self, how: str, params: Params, obs: Any, memory: Memory, key: Key) -> Any:
        found = {}
        for (name, side), key_side in zip(
            self.group_agents.items(), split_key(key, len(self.group_agents)), strict=True
        ):
            each = jax.vmap(getattr(side.agent, how), (side.vmap_axis, 0, 0, 0))
            found[name] = each(
                params[name], self.observer.observe(name, obs), memory[name], split_key(key_side, side.n)
            )
        return tuple({name: one[i] for name, one in found.items()} for i in range(3))

    def group_transitions(self, name: str, t: Transition) -> Transition:
        """Return the transitions of the members of a group.

        Args:
            name: Name of the group.
            t: Transitions of the environment, leaves [*batch, ...].

        Returns:
            Transitions, leaves [*batch, members, ...].
        """
        shown = {"obs": self.observer.observe(name, t.obs), "next_obs": self.observer.observe(name, t.next_obs)}
        return replace(member_transitions(t, name, self.groups[name]), **shown)

    def build_batch(self, params: Params, transitions: Transition, acted_by_current_params: bool) -> Batch:
        """Build the batch of each agent, by group, leaves [steps, envs, members, ...]."""
        found = {}
        for name, side in self.group_agents.items():
            agent = require_learner(side.agent, OnPolicyAgent)
            build = partial(agent.build_batch, acted_by_current_params=acted_by_current_params)
            each = jax.vmap(build, (side.vmap_axis, 2), 2)
            found[name] = each(params[name], self.group_transitions(name, transitions))
        return Batch(**{x.name: {name: getattr(b, x.name) for name, b in found.items()} for x in fields(Batch)})

    def loss(self, params: Params, batch: Batch) -> tuple[Array, Metrics]:
        """Return the sum of the losses of the groups in `params`."""

        def group_loss(name: str, agent: Any, params: Params, member: Array | None) -> tuple[Array, Metrics]:
            rows = Batch(**{x.name: get_group(getattr(batch, x.name), name) for x in fields(Batch)})
            memory = take_member(rows.memory, member, 1)
            rows = replace(take_member(replace(rows, memory=None), member, 2), memory=memory)
            return agent.loss(params, rows)

        return self._sum_losses(params, group_loss)

    def update(self, state: TeamState, loss: Any) -> tuple[TeamState, Metrics]:
        return self._update_agents("update", state, loss, OnPolicyAgent)

    def early_stop(self, metrics: Metrics) -> bool | Array:
        """Return whether any of the agents that learn stops the epochs."""
        learning = {name: side for name, side in self.group_agents.items() if not isinstance(side.agent, Random)}
        stops: bool | Array = not learning
        for name, side in learning.items():
            end = f"/{name}" if len(self.group_agents) > 1 else ""
            own = {key.removesuffix(end): x for key, x in metrics.items() if key.endswith(end)}
            agent: Any = side.agent
            stops |= agent.early_stop(own)
        return stops

    def critic_loss(self, params: Params, state: TeamState, batch: Transition, key: Key) -> tuple[Array, Metrics]:
        """Return the sum of the critic losses of the groups in `params`."""
        return self._sum_losses(params, self._make_group_loss("critic_loss", state, batch, key))

    def actor_loss(self, params: Params, state: TeamState, batch: Transition, key: Key) -> tuple[Array, Metrics]:
        """Return the sum of the actor losses of the groups in `params`."""
        return self._sum_losses(params, self._make_group_loss("actor_loss", state, batch, key))

    def update_critic(self, state: TeamState, loss: Any) -> tuple[TeamState, Metrics]:
        return self._update_agents("update_critic", state, loss, OffPolicyAgent)

    def update_actor(self, state: TeamState, loss: Any) -> tuple[TeamState, Metrics]:
        """Take one gradient step of each actor; agents without an actor, such as DQN, stay unchanged."""
        return self._update_agents("update_actor", state, loss, ActorCritic)

    def update_targets(self, state: TeamState) -> TeamState:
        states = {}
        for name, side in self.group_agents.items():
            follow = require_learner(side.agent, OffPolicyAgent).update_targets
            states[name] = (follow if side.shared else jax.vmap(follow))(state.group_state(name))
        return self._join_states(states)

    def _make_group_loss(self, loss: str, state: TeamState, batch: Transition, key: Key) -> Any:
        """Return the function of a group's loss on the transitions of its members."""
        keys = dict(zip(self.group_agents, split_key(key, len(self.group_agents)), strict=True))
        axes = batch.terminated.ndim

        def group_loss(name: str, agent: Any, params: Params, member: Array | None) -> tuple[Array, Metrics]:
            rows, own, key = self.group_transitions(name, batch), state.group_state(name), keys[name]
            if member is not None:
                own, key = tree.index(own, member), split_key(key, self.groups[name])[member]
            of_each = take_member((rows.memory, rows.weight), member, 1)
            rows = take_member(replace(rows, memory=None, weight=None), member, axes, axes - 1)
            rows = replace(rows, memory=of_each[0], weight=of_each[1])
            value, metrics = getattr(agent, loss)(params, own, rows, key)
            if TD_ERROR in metrics and member is None:
                error = metrics[TD_ERROR]
                metrics |= {TD_ERROR: error.reshape(*error.shape[:-1], -1, self.groups[name]).mean(-1)}
            return value, metrics

        return group_loss

    def _sum_losses(self, params: Params, loss: Callable[..., tuple[Array, Metrics]]) -> tuple[Array, Metrics]:
        """Return the sum of loss(group, agent, params, member) over the groups in `params`.

        Members with separate parameters are summed over; otherwise `member` is None.
        """
        total, found = jnp.float32(0), {}
        for name, of in params.items():
            side = self.group_agents[name]
            if side.shared:
                value, metrics = loss(name, side.agent, of, None)
            elif isinstance(of, MemberParams):
                value, metrics = loss(name, side.agent, of.params, of.member)
            else:
                each = jax.vmap(lambda p, i, name=name, side=side: loss(name, side.agent, p, i))
                value, metrics = each(of, jnp.arange(side.n))
                value, metrics = value.sum(), tree.mean(metrics)
            total += value
            found[name] = metrics
        return total, merge_group_metrics(found)

    def _update_agents(self, how: str, state: TeamState, loss: Any, able: Any) -> Any:
        """Take one update of each agent that implements `able`, and return the new state and the metrics by group.

        Members with separate parameters are updated separately.
        """
        states, found = {}, {}
        for name, side in self.group_agents.items():
            before = state.group_state(name)
            if able is ActorCritic and not isinstance(side.agent, ActorCritic):
                states[name] = before
                continue
            update = getattr(require_learner(side.agent, able), how)
            if side.shared:
                states[name], found[name] = update(before, lambda p, name=name: loss({name: p}))
                continue

            def update_member(state: Any, i: Array, name: str = name, update: Any = update) -> Any:
                return update(state, lambda p: loss({name: MemberParams(p, i)}))

            states[name], metrics = jax.vmap(update_member)(before, jnp.arange(side.n))
            found[name] = tree.mean(metrics)
        return self._join_states(states), merge_group_metrics(found, several=len(self.group_agents) > 1)
