"""What a member of a group observes of a game, and what a central value sees besides."""

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

STATE_KEY = "state"  # the part of a game's observation that is no group's, but known where values are learned


@dataclass(frozen=True)
class MemberObserver:
    """The observations of members by those of a game.

    Args:
        observation_space: of the game.
        ids: whether each sees which member of its group it is.
        central: whether values see the state of the game, and which member they value.
    """

    observation_space: Space
    ids: bool
    central: bool

    @cached_property
    def state_space(self) -> Space:
        """What a central value sees, besides which member it values."""
        assert isinstance(self.observation_space, Dict)
        if STATE_KEY in self.observation_space.parts:
            return self.observation_space.parts[STATE_KEY]
        return joint_observation_space(self.observation_space)

    def state(self, obs: Any) -> Any:
        """Return the value of the state space by a game's observations."""
        return obs[STATE_KEY] if STATE_KEY in obs else joint_observation(self.observation_space, obs)

    def member_space(self, name: str) -> Space:
        """Return the observation space of a member of a group."""
        space, n = groups(self.observation_space)[name].space, group_sizes(self.observation_space)[name]
        own = get_visible_space(space)
        member = {"id": Discrete(n)} if n > 1 else {}
        if self.ids:
            own = Dict({"obs": own, **member})
        if self.central:
            own = PrivilegedObs(own, Dict({"state": self.state_space, **member}))
        return with_visible_space(space, own)

    def observe(self, name: str, obs: Any) -> Any:
        """Return what the members of a group observe.

        Args:
            name: of the group.
            obs: the game's observations, leaves [*batch, ...].

        Returns:
            Leaves [*batch, members, ...].
        """
        if not (self.ids or self.central):
            return obs[name]
        of, n = groups(self.observation_space)[name], group_sizes(self.observation_space)[name]
        batch = flatten(of, obs[name])[0].shape
        batch = batch[: len(batch) - len(leaf_spaces(of)[0].shape)]
        own = get_visible_obs(of.space, obs[name])
        member = {"id": jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (*batch, n))} if n > 1 else {}
        if self.ids:
            own = {"obs": own, **member}
        if self.central:
            own = {"obs": own, "state": {"state": repeat_for_members(self.state(obs), len(batch), n), **member}}
        return with_visible_obs(of.space, obs[name], own)
