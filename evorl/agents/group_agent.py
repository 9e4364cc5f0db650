"""The agent of one group of a game, and the parameters of its members."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Int

from evorl.agents.members import TrainStates
from evorl.errors import OptionError
from evorl.spaces import Space, groups
from evorl.types import Agent, Array, Params, State


@struct.dataclass
class TeamState:
    actor: TrainStates
    states_without_actor: dict[str, State]  # by group, the state of its agent without the actor

    def group_state(self, name: str) -> Any:
        """The state of a group's agent."""
        return replace(self.states_without_actor[name], actor=self.actor.group_state(name))


@struct.dataclass
class MemberParams:
    """The parameters of one member of a group whose members do not share theirs."""

    params: Params
    member: Int[Array, ""]


@dataclass(frozen=True)
class GroupAgent:
    """What plays for a group of n members."""

    agent: Agent
    n: int
    shared: bool  # whether its members have the same weights

    @property
    def vmap_axis(self) -> int | None:
        """The axis of members that its weights lead with."""
        return None if self.shared else 0


def member_spaces(observation_space: Space, action_space: Space) -> tuple[Space, Space]:
    """What a member of the first group observes and does; the spaces themselves where they are no game's."""
    for name, of in groups(action_space).items():
        if name in groups(observation_space):
            return groups(observation_space)[name].space, of.space
    return observation_space, action_space


def get_group(field: Any, name: str) -> Any:
    """What a field of a batch has for a group."""
    return field[name] if isinstance(field, Mapping) else field


def take_member(rows: Any, member: Array | None, at: int, into: int = 0) -> Any:
    """One member's leaves of those with members at an axis, or those of all as more rows of another axis."""

    def take_leaf(x: Array) -> Array:
        if member is not None:
            return jax.lax.dynamic_index_in_dim(x, member, at, keepdims=False)
        x = jnp.moveaxis(x, at, into + 1)
        return x.reshape(*x.shape[:into], -1, *x.shape[into + 2 :])

    return jax.tree.map(take_leaf, rows)


def require_learner(agent: Any, protocol: Any) -> Any:
    """The agent; raises OptionError where it does not learn as its workflow asks."""
    if not isinstance(agent, protocol):
        raise OptionError(f"agents={type(agent).__name__}: does not learn here, it is no {protocol.__name__}")
    return agent
