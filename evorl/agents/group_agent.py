"""Agent of one group of a multi-agent environment, and the parameters of the group's members."""

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
    states_without_actor: dict[str, State]  # by group: state of the agent without its actor

    def group_state(self, name: str) -> Any:
        """Return the state of a group's agent."""
        return replace(self.states_without_actor[name], actor=self.actor.group_state(name))


@struct.dataclass
class MemberParams:
    """Parameters of one member of a group whose members do not share parameters."""

    params: Params
    member: Int[Array, ""]


@dataclass(frozen=True)
class GroupAgent:
    """Agent of a group of n members."""

    agent: Agent
    n: int
    shared: bool  # whether the members share their parameters

    @property
    def vmap_axis(self) -> int | None:
        """Return the member axis of the parameters for vmap: 0, or None if the members share them."""
        return None if self.shared else 0


def member_spaces(observation_space: Space, action_space: Space) -> tuple[Space, Space]:
    """Return the observation and action spaces of a member of the first group.

    If the environment has one agent only, return the spaces unchanged.
    """
    for name, of in groups(action_space).items():
        if name in groups(observation_space):
            return groups(observation_space)[name].space, of.space
    return observation_space, action_space


def get_group(field: Any, name: str) -> Any:
    """Return a group's entry of a batch field, or the field itself if it is not a mapping by group."""
    return field[name] if isinstance(field, Mapping) else field


def take_member(rows: Any, member: Array | None, at: int, into: int = 0) -> Any:
    """Select one member along axis `at`; if `member` is None, merge that axis into axis `into` as more rows."""

    def take_leaf(x: Array) -> Array:
        if member is not None:
            return jax.lax.dynamic_index_in_dim(x, member, at, keepdims=False)
        x = jnp.moveaxis(x, at, into + 1)
        return x.reshape(*x.shape[:into], -1, *x.shape[into + 2 :])

    return jax.tree.map(take_leaf, rows)


def require_learner(agent: Any, protocol: Any) -> Any:
    """Return the agent; raise OptionError if it does not implement the protocol that its workflow needs."""
    if not isinstance(agent, protocol):
        raise OptionError(
            f"agents={type(agent).__name__}: cannot be trained here, it is not an evorl.types.{protocol.__name__}"
        )
    return agent
