"""Wrappers of games."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from evorl import tree
from evorl.envs.wrappers import Wrapper, WrapperState
from evorl.errors import OptionError, unknown_name_error
from evorl.spaces import Dict, Members, Space, get_visible_space, groups
from evorl.types import Env, Key, TimeStep


@dataclass(frozen=True)
class GroupRanking(Wrapper):
    """Game in which the `return`, by which populations are ranked, is the mean over the members of one group.

    Args:
        inner: Game.
        ranked: Name of the group.

    Raises:
        OptionError: If the inner environment is not a game, or has no such group.
    """

    ranked: str = ""  # pyright: ignore[reportIncompatibleMethodOverride]  # a field is readable as the property is

    def __post_init__(self) -> None:
        require_game(self.inner, "ranked")
        if self.ranked not in groups(self.inner.action_space):
            raise unknown_name_error("ranked", self.ranked, groups(self.inner.action_space))

    def reset(self, key: Key, params: Any) -> tuple[WrapperState, Any]:
        inner, obs = self.inner.reset(key, params)
        return WrapperState(inner), obs

    def step(self, key: Key, env_state: WrapperState, action: Any, params: Any) -> tuple[WrapperState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        return WrapperState(inner), timestep


@dataclass(frozen=True)
class JointControl(Wrapper):
    """Game that a single agent plays: it observes what all members observe, and acts for each of them.

    Its reward is the mean reward of the members. A game with action masks is not supported; a team can play
    it.

    Args:
        inner: Game.

    Raises:
        OptionError: If the inner environment is not a game, or if it has action masks.
    """

    def __post_init__(self) -> None:
        require_game(self.inner, "joint")
        for name, of in groups(self.inner.observation_space).items():
            if get_visible_space(of.space) != of.space:
                raise OptionError(f"joint: group {name} has action masks, which are not supported; use agent=ippo")

    @property
    def observation_space(self) -> Space:
        return _to_joint_space(self.inner.observation_space)

    @property
    def action_space(self) -> Space:
        return _to_joint_space(self.inner.action_space)

    def reset(self, key: Key, params: Any) -> tuple[WrapperState, Any]:
        inner, obs = self.inner.reset(key, params)
        return WrapperState(inner), obs

    def step(self, key: Key, env_state: WrapperState, action: Any, params: Any) -> tuple[WrapperState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        timestep = timestep.with_rewards(lambda reward: jnp.concatenate(jax.tree.leaves(reward)).mean())
        return WrapperState(inner), replace(timestep, member_ends=None)


@dataclass(frozen=True)
class SingleAgentGame(Wrapper):
    """Single-agent environment as a game with one group, `only`, of one member.

    Args:
        inner: Single-agent environment.

    Raises:
        OptionError: If the inner environment is a game already.
    """

    def __post_init__(self) -> None:
        if groups(self.inner.action_space):
            raise OptionError(f"alone: {type(self.inner).__name__} is already a multi-agent environment")

    @property
    def observation_space(self) -> Space:
        return Dict({"only": Members(self.inner.observation_space, 1)})

    @property
    def action_space(self) -> Space:
        return Dict({"only": Members(self.inner.action_space, 1)})

    def reset(self, key: Key, params: Any) -> tuple[WrapperState, Any]:
        inner, obs = self.inner.reset(key, params)
        return WrapperState(inner), {"only": tree.broadcast(obs, 1)}

    def step(self, key: Key, env_state: WrapperState, action: Any, params: Any) -> tuple[WrapperState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, tree.index(action["only"], 0), params)
        timestep = timestep.with_rewards(lambda reward: {"only": tree.broadcast(reward, 1)})
        return WrapperState(inner), replace(timestep, obs={"only": tree.broadcast(timestep.obs, 1)})


def require_game(env: Env, place: str) -> None:
    """Raise OptionError if an environment is not a game: its actions have no groups."""
    if not groups(env.action_space):
        why = "is not a multi-agent environment: its action space has no groups (docs/howto/multi_agent.md)"
        raise OptionError(f"{place}: {type(env).__name__} {why}")


def _to_joint_space(space: Space) -> Space:
    """Return the space of the same values without groups."""
    parts = space.parts if isinstance(space, Dict) else {}
    return Dict({name: getattr(part, "joint_space", part) for name, part in parts.items()})
