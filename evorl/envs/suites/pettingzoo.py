"""Export of evorl's multi-agent games as PettingZoo environments."""

from functools import partial
from typing import Any

import jax
import numpy as np
from gymnasium import spaces as gym
from pettingzoo import ParallelEnv

from evorl import tree
from evorl.envs.games.agent_groups import stack_groups
from evorl.envs.games.game_wrappers import require_game
from evorl.envs.host.parallel import make_zero_value
from evorl.envs.suites.gymnasium import (
    from_gymnasium_action,
    key_from_any_seed,
    make_render_metadata,
    render_state,
    split_and_reset,
    split_and_step,
    to_gymnasium_space,
    to_gymnasium_value,
)
from evorl.errors import require
from evorl.spaces import Dict, ObsWithActionMask, Space, groups
from evorl.types import Env, MemberEnds

STATE = "state"


class PettingZooEnv(ParallelEnv):
    """A game with PettingZoo's parallel interface, as `to_pettingzoo` returns it.

    The agents of a group are named GROUP_0, GROUP_1 and so on. They end together, unless the game ends
    members earlier (`TimeStep.member_ends`).
    """

    def __init__(self, env: Env, env_params: Any, render_mode: str | None) -> None:
        require_game(env, "to_pettingzoo")
        assert isinstance(env.observation_space, Dict)
        self.metadata = {
            **make_render_metadata(env, render_mode),
            "name": type(env).__name__,
            "is_parallelizable": True,
        }
        self.render_mode = render_mode
        self._groups, self._seen = groups(env.action_space), groups(env.observation_space)
        self._names = {group: [f"{group}_{i}" for i in range(of.n)] for group, of in self._groups.items()}
        self.possible_agents = [agent for of in self._names.values() for agent in of]
        self.agents: list[str] = []
        self.observation_spaces, self.action_spaces = {}, {}
        for group, of in self._names.items():
            for agent in of:
                self.observation_spaces[agent] = _to_agent_space(self._seen[group].space)
                self.action_spaces[agent] = to_gymnasium_space(self._groups[group].space)
        self._whole = env.observation_space.parts.get(STATE)
        if self._whole is not None:
            self.state_space = to_gymnasium_space(self._whole)
        self._env, self._params = env, env.default_params if env_params is None else env_params
        self._begin, self._step = jax.jit(partial(split_and_reset, env)), jax.jit(partial(split_and_step, env))
        self._key: Any = None
        self._state: Any = None
        self._obs: Any = None

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; a seed fixes this and the following episodes, None continues the sequence."""
        if seed is not None or self._key is None:
            self._key = key_from_any_seed(np.random.SeedSequence().entropy if seed is None else seed)
        self._key, self._state, self._obs = self._begin(self._key, self._params)
        self.agents = list(self.possible_agents)
        return self._split_observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        """Step the game with an action of each agent; return PettingZoo's five dicts by agent."""
        require(bool(self.agents), "step", list(actions), "call reset first")
        missing = [agent for agent in self.agents if agent not in actions]
        require(not missing, "actions", list(actions), f"must be given for all agents; missing: {', '.join(missing)}")
        actions = {agent: self._get_noop(agent) for agent in self.possible_agents} | actions
        given = from_gymnasium_action(self._env.action_space, stack_groups(self._names, actions))
        self._key, self._state, timestep = self._step(self._key, self._state, given, self._params)
        self._obs, acted = timestep.obs, self.agents
        game = bool(timestep.terminated), bool(timestep.truncated)
        rewards, terminated, truncated = {}, {}, {}
        for group, i, agent in self._iterate_agents():
            if agent in acted:
                own = (
                    (False, False) if timestep.member_ends is None else _get_member_ends(timestep.member_ends, group, i)
                )
                rewards[agent] = float(timestep.reward[group][i])
                terminated[agent], truncated[agent] = own if any(own) else game
        self.agents = [agent for agent in acted if not (terminated[agent] or truncated[agent])]
        seen = {agent: obs for agent, obs in self._split_observations().items() if agent in acted}
        return seen, rewards, terminated, truncated, {agent: {} for agent in acted}

    def state(self) -> Any:
        """Return the global state that centralized critics see; raise NotImplementedError if the game has none."""
        return super().state() if self._whole is None else to_gymnasium_value(self._whole, self._obs[STATE])

    def render(self) -> Any:
        """Return the frame of the current state, uint8 [height, width, 3], or None without a render_mode."""
        return None if self.render_mode is None else render_state(self._env, self._state)

    def _get_noop(self, agent: str) -> Any:
        """Return a placeholder action for an agent that has left; it has no effect."""
        return make_zero_value(self.action_spaces[agent])

    def _iterate_agents(self) -> Any:
        return ((group, i, agent) for group, of in self._names.items() for i, agent in enumerate(of))

    def _split_observations(self) -> dict[str, Any]:
        obs = jax.tree.map(np.asarray, self._obs)
        return {
            agent: _to_agent_obs(self._seen[group].space, tree.index(obs[group], i))
            for group, i, agent in self._iterate_agents()
        }


def _get_member_ends(ends: MemberEnds, group: str, i: int) -> tuple[bool, bool]:
    """Return whether one member has terminated, and whether it was truncated."""
    return bool(ends.terminated[group][i]), bool(ends.truncated[group][i])


def _to_agent_space(space: Space) -> Any:
    """Return an agent's observation space; with an action mask, a Dict as PettingZoo defines it."""
    if not isinstance(space, ObsWithActionMask):
        return to_gymnasium_space(space)
    masks = [gym.MultiBinary(n) for n in space.choices]
    mask = masks[0] if len(masks) == 1 else gym.Tuple(masks)
    return gym.Dict({"action_mask": mask, "observation": to_gymnasium_space(space.space)})


def _to_agent_obs(space: Space, obs: Any) -> Any:
    """Convert an agent's observation to a value of `_to_agent_space`."""
    if not isinstance(space, ObsWithActionMask):
        return to_gymnasium_value(space, obs)
    masks = np.split(obs["legal"].astype(np.int8), np.cumsum(space.choices)[:-1])
    mask = masks[0] if len(masks) == 1 else tuple(masks)
    return {"action_mask": mask, "observation": to_gymnasium_value(space.space, obs["obs"])}
