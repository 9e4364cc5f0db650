"""Parallel environments of PettingZoo as games."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from flax.core import FrozenDict

from evorl import spaces
from evorl.envs.games.rosters import roster
from evorl.envs.host import calls
from evorl.envs.host.calls import first_line
from evorl.envs.host.env import require_options
from evorl.envs.host.layout import layout_of
from evorl.envs.host.parallel import Parallel, made, own_limit, seen_of
from evorl.envs.host.places import Here, Places
from evorl.envs.host.played import Layout
from evorl.envs.host.workers import Workers
from evorl.envs.suite import imported, plain
from evorl.errors import OptionError, require, unknown
from evorl.spaces import Dict, Discrete, Legal, Members
from evorl.types import HostParams, HostState, Key, TimeStep


@dataclass(frozen=True)
class HostGame:
    """Any parallel environment of PettingZoo, which lives on the host: by its id, or module:function that makes it.

    Agents of equal spaces whose names differ in a number alone are a group. One that has left, or is not there yet, has
    one legal action, where actions are discrete, and earns nothing. The other options are those of HostEnv;
    max_episode_steps 0 takes the environment's own max_cycles. Raises OptionError.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=FrozenDict)
    workers: int = 0
    timeout_seconds: float = 60
    restart: bool = False
    max_episode_steps: int = 0
    batch: int = 0

    fresh_reset = True

    def __post_init__(self) -> None:
        require_options(self)
        if not self.max_episode_steps:
            limit = self._described[4]
            require(limit > 0, "max_episode_steps", 0, f"{self.name} has no max_cycles; give one")
            object.__setattr__(self, "max_episode_steps", limit)
        _ = self._described, self.recipe if self.workers else None

    @staticmethod
    def names() -> list[str]:
        """The ids of all that PettingZoo has; another package's are module:function."""
        return sorted(imported("pettingzoo", "pettingzoo").parallel_registry)

    @property
    def _given(self) -> dict[str, Any]:
        """What one of it is made of, here or in a worker."""
        limit, agents = self.max_episode_steps, self.agents
        return {"name": self.name, "options": plain(self.options), "agents": agents, "limit": limit}

    def make(self) -> Parallel:
        """One of it."""
        return Parallel(**self._given)

    def places(self) -> Places:
        """Where there is to be one of it, or many."""
        if not self.workers:
            return Here(self.make, self.layout)
        return Workers(self.workers, self.recipe, self.layout, self.timeout_seconds, self.batch > 0)

    @cached_property
    def recipe(self) -> bytes:
        """What a worker makes one of."""
        return pickle.dumps(self._given)

    @cached_property
    def _described(self) -> tuple[dict[str, tuple[str, ...]], spaces.Space, spaces.Space, Layout, int]:
        """The agents of each group, the spaces, what their values are made of, and after how many steps it ends."""
        if ":" not in self.name and self.name not in self.names():
            raise unknown("environment of PettingZoo", self.name, self.names(), "--list env=pettingzoo")
        try:
            env = made(self.name, plain(self.options))
        except Exception as error:
            raise OptionError(f"env.name={self.name}: cannot be made: {first_line(error)}") from error
        from evorl.envs.gymnasium import from_gymnasium

        agents = env.possible_agents
        each = {x: (from_gymnasium(seen_of(env, x)), from_gymnasium(env.action_space(x))) for x in agents}
        groups, obs, actions = roster(each), {}, {}
        for group, (agent, *others) in groups.items():
            seen, action = each[agent]
            obs[group] = Members(Legal(seen, (action.n,)) if isinstance(action, Discrete) else seen, 1 + len(others))
            actions[group] = Members(action, 1 + len(others))
        state = {"state": from_gymnasium(env.state_space)} if hasattr(env, "state_space") else {}
        sees, acts, limit = Dict(obs | state), Dict(actions), own_limit(env)
        env.close()
        layout = layout_of(sees, acts, (len(agents),))
        return groups, spaces.narrowed(sees), spaces.narrowed(acts), layout, limit

    @property
    def agents(self) -> dict[str, tuple[str, ...]]:
        """The library's agents of each group."""
        return self._described[0]

    @property
    def layout(self) -> Layout:
        """What its observations and actions are made of."""
        return self._described[3]

    @property
    def observation_space(self) -> spaces.Space:
        return self._described[1]

    @property
    def action_space(self) -> spaces.Space:
        return self._described[2]

    @property
    def default_params(self) -> HostParams:
        return HostParams(seed=np.zeros(2, np.uint32), workers=self.workers, batch=self.batch)

    def reset(self, key: Key, params: HostParams) -> tuple[HostState, Any]:
        return calls.reset(self, key, params)

    def step(self, key: Key, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
        del key  # its noise is its own, from the seed of its episode on
        after, timestep = calls.step(self, env_state, action, params)
        rewards, at = {}, 0
        for group, agents in self.agents.items():
            rewards[group] = timestep.reward[at : at + len(agents)]
            at += len(agents)
        return after, replace(timestep, reward=rewards)
