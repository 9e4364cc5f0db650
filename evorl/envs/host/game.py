"""Parallel environments of PettingZoo as games."""

import pickle
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from evorl.envs.games.agent_groups import group_agents
from evorl.envs.host.base import NamedHostEnv
from evorl.envs.host.layout import SpacesAndLayout, describe_spaces
from evorl.envs.host.parallel import ParallelEnvAdapter, find_max_cycles, get_observation_space, make_parallel_env
from evorl.envs.suites.common import import_extra, unfreeze
from evorl.errors import require, unknown_name_error
from evorl.spaces import Dict, Discrete, Members, ObsWithActionMask
from evorl.types import Array, HostParams, HostState, Key, MemberEnds, TimeStep


@dataclass(frozen=True)
class HostGame(NamedHostEnv):
    """Any parallel environment of PettingZoo, which lives on the host: by its id, or module:function that makes it.

    Agents of equal spaces whose names differ in a number alone are a group. One that has left, or is not there yet, has
    one legal action, where actions are discrete, and earns nothing; whether it left because it was terminated or
    truncated is told (TimeStep.member_ends). The other options are those of HostEnv;
    max_episode_steps 0 takes the environment's own max_cycles. Raises OptionError.
    """

    @staticmethod
    def names() -> list[str]:
        """The ids of all that PettingZoo has; another package's are module:function."""
        return sorted(import_extra("pettingzoo", "pettingzoo").parallel_registry)

    def default_step_limit(self) -> int:
        limit = self._group_specs[3]
        require(limit > 0, "max_episode_steps", 0, f"{self.name} has no max_cycles; give one")
        return limit

    @property
    def _constructor_kwargs(self) -> dict[str, Any]:
        """What one of it is made of, here or in a worker."""
        limit, agents = self.max_episode_steps, self.agents
        return {"name": self.name, "options": unfreeze(self.options), "agents": agents, "limit": limit}

    def make(self) -> ParallelEnvAdapter:
        return ParallelEnvAdapter(**self._constructor_kwargs)

    @cached_property
    def env_spec_bytes(self) -> bytes:
        return pickle.dumps(self._constructor_kwargs)

    @cached_property
    def _group_specs(self) -> tuple[dict[str, tuple[str, ...]], Dict, Dict, int]:
        """The agents of each group, what they see and do, and after how many steps it ends."""
        from evorl.envs.suites.gymnasium import from_gymnasium_space

        if ":" not in self.name and self.name not in self.names():
            raise unknown_name_error("environment of PettingZoo", self.name, self.names(), "--list env=pettingzoo")
        try:
            env = make_parallel_env(self.name, unfreeze(self.options))
        except Exception as error:
            raise self.make_creation_error(error) from error
        each = {
            x: (from_gymnasium_space(get_observation_space(env, x)), from_gymnasium_space(env.action_space(x)))
            for x in env.possible_agents
        }
        groups, obs, actions = group_agents(each), {}, {}
        for group, (agent, *others) in groups.items():
            seen, action = each[agent]
            obs[group] = Members(
                ObsWithActionMask(seen, (action.n,)) if isinstance(action, Discrete) else seen, 1 + len(others)
            )
            actions[group] = Members(action, 1 + len(others))
        state = {"state": from_gymnasium_space(env.state_space)} if hasattr(env, "state_space") else {}
        limit = find_max_cycles(env)
        env.close()
        return groups, Dict(obs | state), Dict(actions), limit

    @cached_property
    def _spaces_and_layout(self) -> SpacesAndLayout:
        groups, sees, acts, _ = self._group_specs
        return describe_spaces(sees, acts, (sum(map(len, groups.values())),), is_game=True)

    @property
    def agents(self) -> dict[str, tuple[str, ...]]:
        """The library's agents of each group."""
        return self._group_specs[0]

    def step(self, key: Key, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
        after, timestep = super().step(key, env_state, action, params)
        assert timestep.member_ends is not None
        by_group = (self._split_by_group(x) for x in (timestep.member_ends.terminated, timestep.member_ends.truncated))
        return after, replace(timestep, reward=self._split_by_group(timestep.reward), member_ends=MemberEnds(*by_group))

    def _split_by_group(self, values: Array) -> dict[str, Array]:
        """What all agents have in a row, [agents], by group."""
        found, at = {}, 0
        for group, agents in self.agents.items():
            found[group] = values[at : at + len(agents)]
            at += len(agents)
        return found
