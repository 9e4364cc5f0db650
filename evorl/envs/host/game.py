"""Parallel environments of PettingZoo as games."""

import pickle
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from evorl.envs.games.rosters import roster
from evorl.envs.host.bridge import Placed
from evorl.envs.host.layout import Described, described
from evorl.envs.host.parallel import Parallel, made, own_limit, seen_of
from evorl.envs.suite import imported, plain
from evorl.errors import require, unknown
from evorl.spaces import Dict, Discrete, Legal, Members
from evorl.types import Array, Ends, HostParams, HostState, Key, TimeStep


@dataclass(frozen=True)
class HostGame(Placed):
    """Any parallel environment of PettingZoo, which lives on the host: by its id, or module:function that makes it.

    Agents of equal spaces whose names differ in a number alone are a group. One that has left, or is not there yet, has
    one legal action, where actions are discrete, and earns nothing; whether it left because it was terminated or
    truncated is told (TimeStep.ends). The other options are those of HostEnv;
    max_episode_steps 0 takes the environment's own max_cycles. Raises OptionError.
    """

    @staticmethod
    def names() -> list[str]:
        """The ids of all that PettingZoo has; another package's are module:function."""
        return sorted(imported("pettingzoo", "pettingzoo").parallel_registry)

    def own_limit(self) -> int:
        limit = self._known[3]
        require(limit > 0, "max_episode_steps", 0, f"{self.name} has no max_cycles; give one")
        return limit

    @property
    def _given(self) -> dict[str, Any]:
        """What one of it is made of, here or in a worker."""
        limit, agents = self.max_episode_steps, self.agents
        return {"name": self.name, "options": plain(self.options), "agents": agents, "limit": limit}

    def make(self) -> Parallel:
        return Parallel(**self._given)

    @cached_property
    def recipe(self) -> bytes:
        return pickle.dumps(self._given)

    @cached_property
    def _known(self) -> tuple[dict[str, tuple[str, ...]], Dict, Dict, int]:
        """The agents of each group, what they see and do, and after how many steps it ends."""
        from evorl.envs.gymnasium import from_gymnasium

        if ":" not in self.name and self.name not in self.names():
            raise unknown("environment of PettingZoo", self.name, self.names(), "--list env=pettingzoo")
        try:
            env = made(self.name, plain(self.options))
        except Exception as error:
            raise self.cannot_be_made(error) from error
        each = {x: (from_gymnasium(seen_of(env, x)), from_gymnasium(env.action_space(x))) for x in env.possible_agents}
        groups, obs, actions = roster(each), {}, {}
        for group, (agent, *others) in groups.items():
            seen, action = each[agent]
            obs[group] = Members(Legal(seen, (action.n,)) if isinstance(action, Discrete) else seen, 1 + len(others))
            actions[group] = Members(action, 1 + len(others))
        state = {"state": from_gymnasium(env.state_space)} if hasattr(env, "state_space") else {}
        limit = own_limit(env)
        env.close()
        return groups, Dict(obs | state), Dict(actions), limit

    @cached_property
    def _described(self) -> Described:
        groups, sees, acts, _ = self._known
        return described(sees, acts, (sum(map(len, groups.values())),))

    @property
    def agents(self) -> dict[str, tuple[str, ...]]:
        """The library's agents of each group."""
        return self._known[0]

    def step(self, key: Key, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
        after, timestep = super().step(key, env_state, action, params)
        assert timestep.ends is not None
        by_group = (self._by_group(x) for x in (timestep.ends.terminated, timestep.ends.truncated))
        return after, replace(timestep, reward=self._by_group(timestep.reward), ends=Ends(*by_group))

    def _by_group(self, values: Array) -> dict[str, Array]:
        """What all agents have in a row, [agents], by group."""
        found, at = {}, 0
        for group, agents in self.agents.items():
            found[group] = values[at : at + len(agents)]
            at += len(agents)
        return found
