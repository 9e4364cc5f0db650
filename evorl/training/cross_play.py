"""Cross-play: a policy controls one player of a game, and another policy or random actions control all others."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from evorl.errors import OptionError, require, unknown_name_error
from evorl.spaces import group_sizes, random_action
from evorl.training.policy import Policy
from evorl.types import Env, Key, Memory, PolicyFn


@dataclass(frozen=True)
class PlayerId:
    """A player of a game: a group, or one member of a group."""

    group: str
    member: int | None = None

    @classmethod
    def from_name(cls, name: str | None, env: Env) -> "PlayerId":
        """Return the player with the name GROUP or GROUP/NUMBER; raise OptionError if the game has no such player."""
        teams = group_sizes(env.action_space)
        if not teams:
            raise OptionError("against: needs a multi-agent environment; this run has a single-agent one")
        members = [f"{group}/{i}" for group, n in teams.items() for i in range(n) if n > 1]
        places = [*teams, *members]
        require(
            name is not None,
            "group",
            "nothing",
            f"must be the group or agent that this run controls: {', '.join(places)}",
        )
        if name not in places:
            raise unknown_name_error("group", str(name), places)
        group, _, member = str(name).partition("/")
        return cls(group, int(member) if member else None)

    def select_values(self, values: Mapping[str, Any]) -> Any:
        """Return the values of this player from values by group, leaves [..., members]; for a group, their mean."""
        return values[self.group].mean(-1) if self.member is None else values[self.group][..., self.member]

    def set_actions(self, actions: Mapping[str, Any], done: Mapping[str, Any], rows: Any, here: Any) -> dict[str, Any]:
        """Return the actions with this player's actions in environments `rows` replaced by rows `here` of `done`.

        Both are dicts by group, leaves [envs, members, ...].
        """
        who = (rows,) if self.member is None else (rows, self.member)
        those = (here,) if self.member is None else (here, self.member)
        group = jax.tree.map(lambda a, b: a.at[who].set(b[those]), actions[self.group], done[self.group])
        return {**actions, self.group: group}

    def merge_actions(self, player_actions: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
        """Return this player's actions from `player_actions`, and the actions of all others from `others`.

        Both are dicts by group, leaves [members, ...].
        """
        if self.member is None:
            return {**others, self.group: player_actions[self.group]}
        mine = jax.tree.map(
            lambda a, b: b.at[self.member].set(a[self.member]), player_actions[self.group], others[self.group]
        )
        return {**others, self.group: mine}


class CrossPlayPolicy(Policy):
    """Policy that controls one player of a game, while another policy (None for random actions) controls the rest."""

    def __init__(self, policy: Policy, place: PlayerId, other: Policy | None) -> None:
        self.env, self.env_params = policy.env, policy.env_params
        spaces = self.env.observation_space, self.env.action_space
        if other is not None and (other.env.observation_space, other.env.action_space) != spaces:
            raise OptionError("against: that run has another environment; its observation or action space differs")
        self.memory = policy.memory, None if other is None else other.memory
        act = partial(self._act_jointly, policy, place, other)
        self._modes = {explores: partial(act, explores) for explores in (False, True)}
        self._act = jax.jit(self._act_on_rows, static_argnames="explores")

    def _act_jointly(self, policy: Policy, place: PlayerId, other: Policy | None, explores: bool, *given: Any) -> Any:
        obs, (memory, memory_other), key = given
        keys = jax.random.split(key)
        own, memory, extras = policy.as_policy_fn(explores)(obs, memory, keys[0])
        play = make_random_policy(self.env) if other is None else other.as_policy_fn(explores)
        others, memory_other, _ = play(obs, memory_other, keys[1])
        return place.merge_actions(own, others), (memory, memory_other), extras


def make_random_policy(env: Env) -> PolicyFn:
    """Return a policy with random actions for all players."""

    def act(obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        return random_action(env.action_space, env.observation_space, obs, key), memory, {}

    return act
