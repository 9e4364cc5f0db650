"""PettingZoo parallel environments that run on the host as multi-agent games."""

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
from evorl.part_docs import complete_docstring
from evorl.spaces import Dict, Discrete, Members, ObsWithActionMask
from evorl.types import Array, HostParams, HostState, Key, MemberEnds, TimeStep


@complete_docstring
@dataclass(frozen=True)
class HostGame(NamedHostEnv):
    """Any PettingZoo parallel environment, run on the host, by its id or by `module:function`, which creates it.

    Agents with equal spaces whose names differ only in a number form a group. If actions are discrete, an
    agent that has left or has not joined yet has one valid action, the first; it gets no reward.
    `TimeStep.member_ends` tells whether an agent left because it was terminated or truncated.
    `max_episode_steps` must not be above the environment's own `max_cycles`, which 0 takes. Leases, failures
    and `batch` are as in `HostEnv`.

    Raises:
        OptionError: If a value is not allowed or the environment cannot be created.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        own = self._group_specs[3]
        wanted = f"must be at most {own}, the max_cycles of {self.name}; to have more, give env.options.max_cycles, too"
        require(not own or self.max_episode_steps <= own, "max_episode_steps", self.max_episode_steps, wanted)

    @staticmethod
    def names() -> list[str]:
        """Return the ids of PettingZoo's own parallel environments, sorted; others need `module:function`."""
        return sorted(import_extra("pettingzoo", "pettingzoo").parallel_registry)

    def default_step_limit(self) -> int:
        """Return the environment's `max_cycles`.

        Raises:
            OptionError: If the environment does not declare it.
        """
        limit = self._group_specs[3]
        require(limit > 0, "max_episode_steps", 0, f"{self.name} has no max_cycles; give one")
        return limit

    @property
    def _constructor_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments of ParallelEnvAdapter, in this process or in a worker."""
        limit, agents = self.max_episode_steps, self.agents
        return {"name": self.name, "options": unfreeze(self.options), "agents": agents, "limit": limit}

    def make(self) -> ParallelEnvAdapter:
        """Create one environment, as an adapter with grouped observations and actions."""
        return ParallelEnvAdapter(**self._constructor_kwargs)

    @cached_property
    def env_spec_bytes(self) -> bytes:
        """Return the pickled arguments from which a worker creates the environment."""
        return pickle.dumps(self._constructor_kwargs)

    @cached_property
    def _group_specs(self) -> tuple[dict[str, tuple[str, ...]], Dict, Dict, int]:
        """Return the agents of each group, the observation and action spaces, and the step limit (0 if unknown)."""
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
        """Return the names of PettingZoo's agents in each group."""
        return self._group_specs[0]

    def step(self, key: Key, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
        after, timestep = super().step(key, env_state, action, params)
        assert timestep.member_ends is not None
        by_group = (self._split_by_group(x) for x in (timestep.member_ends.terminated, timestep.member_ends.truncated))
        return after, replace(timestep, reward=self._split_by_group(timestep.reward), member_ends=MemberEnds(*by_group))

    def _split_by_group(self, values: Array) -> dict[str, Array]:
        """Split the values of all agents, shape [agents], by group."""
        found, at = {}, 0
        for group, agents in self.agents.items():
            found[group] = values[at : at + len(agents)]
            at += len(agents)
        return found
