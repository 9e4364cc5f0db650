"""An agent for each group of a game."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from evorl import hyperparameters, tree
from evorl.agents.losses import OF_ROWS, TD_ERROR
from evorl.agents.members import TrainStates, all_seen, everything, for_members, member_rows, named
from evorl.agents.policy_gradient import PolicyGradient
from evorl.agents.train_state import TrainState
from evorl.errors import OptionError, require, unknown
from evorl.spaces import (
    Dict,
    Discrete,
    Privileged,
    Space,
    flatten,
    groups,
    keys_of,
    leaves,
    seen,
    showing,
    shown,
    sizes,
    visible,
)
from evorl.types import (
    ActorCritic,
    Agent,
    Array,
    Batch,
    Chooses,
    Hyperparams,
    Key,
    Memory,
    Metrics,
    OffPolicyAgent,
    OnPolicyAgent,
    Params,
    Transition,
)

NOTHING = TrainState((), (), ())
STATE = "state"  # the part of a game's observation that is no group's, but known where values are learned


@struct.dataclass
class TeamState:
    actor: TrainStates
    rest: Any  # by group, the state of its agent without the actor

    def group(self, name: str) -> Any:
        """The state of a group's agent."""
        return replace(self.rest[name], actor=self.actor.group(name))


@struct.dataclass
class One:
    """The parameters of one member of a group whose members do not share theirs."""

    params: Any
    member: Any  # [] int32


@dataclass(frozen=True)
class Side:
    """What plays for a group of n members."""

    agent: Agent
    n: int
    shared: bool  # whether its members have the same weights

    @property
    def over(self) -> int | None:
        """The axis of members that its weights lead with."""
        return None if self.shared else 0


def member_spaces(observation_space: Space, action_space: Space) -> tuple[Space, Space]:
    """What a member of the first group observes and does; the spaces themselves where they are no game's."""
    for name, of in groups(action_space).items():
        if name in groups(observation_space):
            return groups(observation_space)[name].space, of.space
    return observation_space, action_space


@dataclass(frozen=True)
class Team:
    """Agents that play a game and learn each for itself: one for all groups, or one by the name of each.

    An agent is a template, whose spaces become those of a member. Members of a group share their weights unless
    `shared` says that they do not, of all groups or by name; with `ids` each sees which member it is. Where it is
    `central`, the values of PolicyGradient see the state of the game, which is all that is observed unless the game
    has its own, and which member they value (MAPPO; Yu et al. 2021, arXiv:2103.01955).
    """

    observation_space: Space
    action_space: Space
    agents: Agent | Mapping[str, Agent] = field(metadata={"spaces": member_spaces})
    shared: bool | Mapping[str, bool] = True
    ids: bool = False
    central: bool = False

    def __post_init__(self) -> None:
        if not self.groups:
            raise OptionError(
                "env: is for one agent, and a team plays games, whose actions are by group (docs/games.md)"
            )
        for name, of in (("agents", self.agents), ("shared", self.shared)):
            for group in of if isinstance(of, Mapping) else ():
                if group not in self.groups:
                    raise unknown(f"group in {name}", group, self.groups)
        if isinstance(self.agents, Mapping):
            missing = [name for name in self.groups if name not in self.agents]
            require(
                not missing, "agents", list(self.agents), f"must have one for each group, also {', '.join(missing)}"
            )
        for side in self.sides.values():
            needs = "needs agents with a value beside their policy: PolicyGradient"
            require(not self.central or isinstance(side.agent, PolicyGradient), "central", self.central, needs)

    def __hash__(self) -> int:
        parts = (tuple(sorted(x.items())) if isinstance(x, Mapping) else x for x in (self.agents, self.shared))
        return hash((self.observation_space, self.action_space, *parts, self.ids, self.central))

    @cached_property
    def groups(self) -> dict[str, int]:
        """How many members each group has."""
        return sizes(self.action_space)

    @cached_property
    def sides(self) -> dict[str, Side]:
        """What plays for each group."""
        return {name: self._side(name) for name in self.groups}

    def _side(self, name: str) -> Side:
        template = self.agents[name] if isinstance(self.agents, Mapping) else self.agents
        shared = self.shared.get(name, True) if isinstance(self.shared, Mapping) else self.shared
        spaces = {"observation_space": self.sees(name), "action_space": groups(self.action_space)[name].space}
        known: Any = template
        return Side(replace(known, **spaces), self.groups[name], shared)

    @cached_property
    def state_space(self) -> Space:
        """What a central value sees, besides which member it values."""
        assert isinstance(self.observation_space, Dict)
        if STATE in self.observation_space.parts:
            return self.observation_space.parts[STATE]
        return everything(self.observation_space)

    def state_of(self, obs: Any) -> Any:
        """The value of the state space by a game's observations."""
        return obs[STATE] if STATE in obs else all_seen(self.observation_space, obs)

    def sees(self, name: str) -> Space:
        """What the agent of a group takes as the observation of a member."""
        space, n = groups(self.observation_space)[name].space, self.groups[name]
        own = visible(space)
        member = {"id": Discrete(n)} if n > 1 else {}
        if self.ids:
            own = Dict({"obs": own, **member})
        if self.central:
            own = Privileged(own, Dict({"state": self.state_space, **member}))
        return showing(space, own)

    def observed(self, name: str, obs: Any) -> Any:
        """What the members of a group observe, leaves [*batch, members, ...], of a game's observations, [*batch]."""
        if not (self.ids or self.central):
            return obs[name]
        of, n = groups(self.observation_space)[name], self.groups[name]
        batch = flatten(of, obs[name])[0].shape
        batch = batch[: len(batch) - len(leaves(of)[0].shape)]
        own = seen(of.space, obs[name])
        member = {"id": jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (*batch, n))} if n > 1 else {}
        if self.ids:
            own = {"obs": own, **member}
        if self.central:
            own = {"obs": own, "state": {"state": for_members(self.state_of(obs), len(batch), n), **member}}
        return shown(of.space, obs[name], own)

    def hyperparams(self) -> Hyperparams:
        """Those of the agent of all groups, or of each by name."""
        if isinstance(self.agents, Mapping):
            return {name: hyperparameters.of(agent) for name, agent in sorted(self.agents.items())}
        return hyperparameters.of(self.agents)

    def of_group(self, name: str, hyperparams: Hyperparams) -> Hyperparams:
        """The hyperparameters of a group's agent."""
        return hyperparams[name] if isinstance(self.agents, Mapping) else hyperparams

    def init(self, key: Key, hyperparams: Hyperparams) -> TeamState:
        states = {}
        for (name, side), key_side in zip(self.sides.items(), keys_of(key, len(self.sides)), strict=True):
            h = self.of_group(name, hyperparams)
            many = jax.vmap(lambda key, side=side, h=h: side.agent.init(key, h))
            states[name] = side.agent.init(key_side, h) if side.shared else many(keys_of(key_side, side.n))
        return self._joined(states)

    def _joined(self, states: dict[str, Any]) -> TeamState:
        """The state of a team from those of its agents."""
        apart = tuple(name for name, side in self.sides.items() if not side.shared)
        rest = {name: replace(state, actor=NOTHING) for name, state in states.items()}
        return TeamState(TrainStates.of({name: state.actor for name, state in states.items()}, apart), rest)

    def memory(self) -> Memory:
        return {name: tree.broadcast(side.agent.memory(), side.n) for name, side in self.sides.items()}

    def act(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        """An action for each member by its agent, leaves [members, ...] by group."""
        return self._acted("act", params, obs, memory, key, hyperparams)

    def mode(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        return self._acted("mode", params, obs, memory, key, hyperparams)

    def probabilities(self, params: Params, obs: Any, hyperparams: Hyperparams) -> dict[str, Array]:
        """How likely each member takes each choice, [members, choices] by group."""
        found = {}
        for name, side in self.sides.items():
            h, agent = self.of_group(name, hyperparams), _able(side.agent, Chooses)
            each = jax.vmap(lambda params, obs, agent=agent, h=h: agent.probabilities(params, obs, h), (side.over, 0))
            found[name] = each(params[name], self.observed(name, obs))
        return found

    def _acted(self, how: str, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams) -> Any:
        found = {}
        for (name, side), key_side in zip(self.sides.items(), keys_of(key, len(self.sides)), strict=True):
            h, act = self.of_group(name, hyperparams), getattr(side.agent, how)
            each = jax.vmap(lambda *given, act=act, h=h: act(*given, h), (side.over, 0, 0, 0))
            found[name] = each(params[name], self.observed(name, obs), memory[name], keys_of(key_side, side.n))
        return tuple({name: one[i] for name, one in found.items()} for i in range(3))

    def rows(self, name: str, t: Transition) -> Transition:
        """What the members of a group learn from, leaves [*batch, members, ...], of steps of the game, [*batch]."""
        shown = {"obs": self.observed(name, t.obs), "next_obs": self.observed(name, t.next_obs)}
        return replace(member_rows(t, name, self.groups[name]), **shown)

    def batch(self, params: Params, transitions: Transition, hyperparams: Hyperparams, fresh: bool) -> Batch:
        """What each agent learns from by group, leaves [steps, slots, members, ...]."""
        found = {}
        for name, side in self.sides.items():
            h, agent = self.of_group(name, hyperparams), _able(side.agent, OnPolicyAgent)
            each = jax.vmap(lambda p, t, agent=agent, h=h: agent.batch(p, t, h, fresh), (side.over, 2), 2)
            found[name] = each(params[name], self.rows(name, transitions))
        return Batch(**{x.name: {name: getattr(b, x.name) for name, b in found.items()} for x in fields(Batch)})

    def loss(self, params: Params, batch: Batch, hyperparams: Hyperparams) -> tuple[Array, Metrics]:
        """The sum of the losses of the groups that params are of."""

        def one(name: str, agent: Any, params: Params, member: Array | None) -> tuple[Array, Metrics]:
            rows = Batch(**{x.name: _of(getattr(batch, x.name), name) for x in fields(Batch)})
            memory = _taken(rows.memory, member, 1)
            rows = replace(_taken(replace(rows, memory=()), member, 2), memory=memory)
            return agent.loss(params, rows, self.of_group(name, hyperparams))

        return self._summed(params, one)

    def update(self, state: TeamState, loss: Any, hyperparams: Hyperparams) -> tuple[TeamState, Metrics]:
        return self._updated("update", state, loss, hyperparams, OnPolicyAgent)

    def early_stop(self, metrics: Metrics, hyperparams: Hyperparams) -> bool | Array:
        """Whether any of its agents would stop."""
        stops: bool | Array = False
        for name, side in self.sides.items():
            end = f"/{name}" if len(self.sides) > 1 else ""
            own = {key.removesuffix(end): x for key, x in metrics.items() if key.endswith(end)}
            agent: Any = side.agent
            stops |= agent.early_stop(own, self.of_group(name, hyperparams))
        return stops

    def critic_loss(
        self, params: Params, state: TeamState, batch: Transition, key: Key, hyperparams: Hyperparams
    ) -> tuple[Array, Metrics]:
        """The sum of the losses of the critics of the groups that params are of."""
        return self._summed(params, self._on_rows("critic_loss", state, batch, key, hyperparams))

    def actor_loss(
        self, params: Params, state: TeamState, batch: Transition, key: Key, hyperparams: Hyperparams
    ) -> tuple[Array, Metrics]:
        """The same of the actors."""
        return self._summed(params, self._on_rows("actor_loss", state, batch, key, hyperparams))

    def update_critic(self, state: TeamState, loss: Any, hyperparams: Hyperparams) -> tuple[TeamState, Metrics]:
        return self._updated("update_critic", state, loss, hyperparams, OffPolicyAgent)

    def update_actor(self, state: TeamState, loss: Any, hyperparams: Hyperparams) -> tuple[TeamState, Metrics]:
        """A step of the actors; agents without one, such as DQN, stay as they are."""
        return self._updated("update_actor", state, loss, hyperparams, ActorCritic)

    def update_targets(self, state: TeamState, hyperparams: Hyperparams) -> TeamState:
        states = {}
        for name, side in self.sides.items():
            agent, h = _able(side.agent, OffPolicyAgent), self.of_group(name, hyperparams)
            follow = lambda state, agent=agent, h=h: agent.update_targets(state, h)  # noqa: E731
            states[name] = (follow if side.shared else jax.vmap(follow))(state.group(name))
        return self._joined(states)

    def _on_rows(self, loss: str, state: TeamState, batch: Transition, key: Key, hyperparams: Hyperparams) -> Any:
        """A loss of an agent on what the members of its group learn from."""
        keys, axes = dict(zip(self.sides, keys_of(key, len(self.sides)), strict=True)), batch.terminated.ndim

        def one(name: str, agent: Any, params: Params, member: Array | None) -> tuple[Array, Metrics]:
            rows, own, key = self.rows(name, batch), state.group(name), keys[name]
            if member is not None:
                own, key = tree.index(own, member), keys_of(key, self.groups[name])[member]
            of_each = _taken((rows.memory, rows.weight), member, 1)
            rows = _taken(replace(rows, memory=(), weight=()), member, axes, axes - 1)
            rows = replace(rows, memory=of_each[0], weight=of_each[1])
            value, metrics = getattr(agent, loss)(params, own, rows, key, self.of_group(name, hyperparams))
            if TD_ERROR in metrics and member is None:
                error = metrics[TD_ERROR]
                metrics |= {TD_ERROR: error.reshape(*error.shape[:-1], -1, self.groups[name]).mean(-1)}
            return value, metrics

        return one

    def _summed(self, params: Params, loss: Callable[..., tuple[Array, Metrics]]) -> tuple[Array, Metrics]:
        """The sum of loss(group, agent, params, member) over groups that params are of, and members that are apart."""
        total, found = jnp.float32(0), {}
        for name, of in params.items():
            side = self.sides[name]
            if side.shared:
                value, metrics = loss(name, side.agent, of, None)
            elif isinstance(of, One):
                value, metrics = loss(name, side.agent, of.params, of.member)
            else:
                each = jax.vmap(lambda p, i, name=name, side=side: loss(name, side.agent, p, i))
                value, metrics = each(of, jnp.arange(side.n))
                value, metrics = value.sum(), tree.mean(metrics)
            total += value
            found[name] = {key: x for key, x in metrics.items() if key not in OF_ROWS}
        return total, named(found)

    def _updated(self, how: str, state: TeamState, loss: Any, hyperparams: Hyperparams, able: Any) -> Any:
        """A step of each agent that can take it, of members that are apart one by one, and the metrics by group."""
        states, found = {}, {}
        for name, side in self.sides.items():
            before, h = state.group(name), self.of_group(name, hyperparams)
            if able is ActorCritic and not isinstance(side.agent, ActorCritic):
                states[name] = before
                continue
            update = getattr(_able(side.agent, able), how)
            if side.shared:
                states[name], found[name] = update(before, lambda p, name=name: loss({name: p}), h)
                continue

            def one(state: Any, i: Array, name: str = name, update: Any = update, h: Any = h) -> Any:
                return update(state, lambda p: loss({name: One(p, i)}), h)

            states[name], metrics = jax.vmap(one)(before, jnp.arange(side.n))
            found[name] = tree.mean(metrics)
        return self._joined(states), named(found, several=len(self.sides) > 1)


def _of(field: Any, name: str) -> Any:
    """What a field of a batch has for a group."""
    return field[name] if isinstance(field, Mapping) else field


def _taken(rows: Any, member: Array | None, at: int, into: int = 0) -> Any:
    """One member's leaves of those with members at an axis, or those of all as more rows of another axis."""

    def one(x: Array) -> Array:
        if member is not None:
            return jax.lax.dynamic_index_in_dim(x, member, at, keepdims=False)
        x = jnp.moveaxis(x, at, into + 1)
        return x.reshape(*x.shape[:into], -1, *x.shape[into + 2 :])

    return jax.tree.map(one, rows)


def _able(agent: Any, protocol: Any) -> Any:
    """The agent; raises OptionError where it does not learn as its workflow asks."""
    if not isinstance(agent, protocol):
        raise OptionError(f"agents={type(agent).__name__}: does not learn here, it is no {protocol.__name__}")
    return agent
