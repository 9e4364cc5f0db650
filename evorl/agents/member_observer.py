"""Observations of the members of a group, and the additional inputs of a centralized value function."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp

from evorl.agents.members import joint_observation, joint_observation_space, repeat_for_members
from evorl.spaces import (
    Dict,
    Discrete,
    PrivilegedObs,
    Space,
    flatten,
    get_visible_obs,
    get_visible_space,
    group_sizes,
    groups,
    leaf_spaces,
    with_visible_obs,
    with_visible_space,
)

STATE_KEY = "state"  # entry of an observation that belongs to no group: the state for central values


@dataclass(frozen=True)
class MemberObserver:
    """Observations of the members, computed from those of a multi-agent environment.

    Args:
        observation_space: Observation space of the environment.
        obs_agent_id: Whether each member sees its index within its group.
        centralized: Whether value functions see the state of the environment and the index of the member that
            they evaluate.
    """

    observation_space: Space
    obs_agent_id: bool
    centralized: bool

    @cached_property
    def state_space(self) -> Space:
        """Return the space of the state that a centralized value function sees, without the member's index."""
        assert isinstance(self.observation_space, Dict)
        if STATE_KEY in self.observation_space.parts:
            return self.observation_space.parts[STATE_KEY]
        return joint_observation_space(self.observation_space)

    def state(self, obs: Any) -> Any:
        """Return the state, a value of `state_space`, from the observations of the environment."""
        return obs[STATE_KEY] if STATE_KEY in obs else joint_observation(self.observation_space, obs)

    def member_space(self, name: str) -> Space:
        """Return the observation space of a member of a group."""
        space, n = groups(self.observation_space)[name].space, group_sizes(self.observation_space)[name]
        own = get_visible_space(space)
        member = {"id": Discrete(n)} if n > 1 else {}
        if self.obs_agent_id:
            own = Dict({"obs": own, **member})
        if self.centralized:
            own = PrivilegedObs(own, Dict({"state": self.state_space, **member}))
        return with_visible_space(space, own)

    def observe(self, name: str, obs: Any) -> Any:
        """Return the observations of the members of a group, leaves [*batch, members, ...].

        `obs` are the observations of the environment, leaves [*batch, ...].
        """
        if not (self.obs_agent_id or self.centralized):
            return obs[name]
        of, n = groups(self.observation_space)[name], group_sizes(self.observation_space)[name]
        batch = flatten(of, obs[name])[0].shape
        batch = batch[: len(batch) - len(leaf_spaces(of)[0].shape)]
        own = get_visible_obs(of.space, obs[name])
        member = {"id": jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (*batch, n))} if n > 1 else {}
        if self.obs_agent_id:
            own = {"obs": own, **member}
        if self.centralized:
            own = {"obs": own, "state": {"state": repeat_for_members(self.state(obs), len(batch), n), **member}}
        return with_visible_obs(of.space, obs[name], own)
