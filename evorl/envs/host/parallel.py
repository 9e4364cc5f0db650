"""PettingZoo parallel environments with Gymnasium's interface.

Workers import this file, so it must not import JAX or other modules of evorl.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

PRESENT, TERMINATED, TRUNCATED = range(3)  # state of an agent
MASK, SEEN = "action_mask", "observation"  # PettingZoo's keys of the action mask and of the rest of the observation


def make_parallel_env(name: str, options: Mapping[str, Any]) -> Any:
    """Create an environment by its id in PettingZoo's registry, or by calling `module:function`."""
    module, _, function = name.rpartition(":")
    if module:
        return getattr(importlib.import_module(module), function)(**options)
    import pettingzoo

    return pettingzoo.make("parallel", name, **options)


class ParallelEnvAdapter:
    """A PettingZoo parallel environment with observations, actions and rewards by group, leaves [members, ...].

    If actions are discrete, observations include the action mask. An agent that is absent observes the value
    of its space that is nearest to zeros, has one valid action, the first, and gets no reward. The last
    observation of a truncated agent keeps its own mask, so that its value can be bootstrapped. The episode
    ends when the last agent has left.

    Args:
        name: Id in PettingZoo's registry, or `module:function`.
        options: Keyword arguments of the environment's constructor.
        agents: Names of the agents of each group.
        limit: Steps after which an episode is truncated.
    """

    def __init__(self, name: str, options: Mapping[str, Any], agents: Mapping[str, Sequence[str]], limit: int) -> None:
        self.env, self.agents, self.limit, self.steps = make_parallel_env(name, options), agents, limit, 0
        self.left: dict[str, int] = {}  # agents that have left, and why: TERMINATED or TRUNCATED
        self.order = [agent for of in agents.values() for agent in of]
        self.nothing = {agent: make_zero_value(get_observation_space(self.env, agent)) for agent in self.order}
        self.choices = {agent: _count_choices(self.env.action_space(agent)) for agent in self.order}

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode and return the observations by group."""
        obs, infos = self.env.reset(seed=seed)
        self.steps, self.left = 0, {}
        return self._observe(obs, infos, set(self.env.agents)), {}

    def step(self, action: Mapping[str, Any]) -> tuple[dict[str, Any], np.ndarray, bool, bool, dict[str, Any]]:
        """Take a step; rewards, and "left" in the info, are arrays over all agents, ordered by group."""
        there = set(self.env.agents)
        every = ((group, i, agent) for group, of in self.agents.items() for i, agent in enumerate(of))
        given = {agent: map_arrays(lambda x, i=i: x[i], action[group]) for group, i, agent in every if agent in there}
        obs, rewards, terminated, truncated, infos = self.env.step(given)
        self.steps += 1
        new = {agent for agent in there - set(self.env.agents) if terminated.get(agent) or truncated.get(agent)}
        self.left |= {agent: TERMINATED if terminated.get(agent) else TRUNCATED for agent in new}
        cut_now = {agent for agent in new if self.left[agent] == TRUNCATED}
        over = not self.env.agents
        cut = any(truncated.values()) if over else self.steps >= self.limit
        reward = np.array([rewards.get(agent, 0.0) for agent in self.order], np.float32)
        left = np.array([self.left.get(agent, PRESENT) for agent in self.order], np.uint8)
        seen = self._observe(obs, infos, set(self.env.agents) | cut_now)
        return seen, reward, over and not cut, cut, {"left": left}

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _observe(self, obs: Mapping[str, Any], infos: Mapping[str, Any], there: set) -> dict[str, Any]:
        found = {group: self._observe_group(agents, obs, infos, there) for group, agents in self.agents.items()}
        if hasattr(self.env, "state_space"):
            found["state"] = self.env.state()
        return found

    def _observe_group(
        self, agents: Sequence[str], obs: Mapping[str, Any], infos: Mapping[str, Any], there: set
    ) -> Any:
        told = [(agent, obs.get(agent)) for agent in agents]
        both = [x if isinstance(x, Mapping) and MASK in x else {**infos.get(agent, {}), SEEN: x} for agent, x in told]
        masks, told = ([x.get(name) for x in both] for name in (MASK, SEEN))
        told = [self.nothing[agent] if x is None else x for agent, x in zip(agents, told, strict=True)]
        seen = map_arrays(_stack_as, self.nothing[agents[0]], *told)
        n = self.choices[agents[0]]
        if not n:
            return seen
        legal = np.zeros((len(agents), n), bool)
        for row, agent, mask in zip(legal, agents, masks, strict=True):
            if agent in there:
                row[:] = True if mask is None else mask
            else:
                row[0] = True
        return {"legal": legal, "obs": seen}


def get_observation_space(env: Any, agent: str) -> Any:
    """Return the observation space of an agent without the action mask."""
    space = env.observation_space(agent)
    return space[SEEN] if MASK in getattr(space, "spaces", ()) else space


def find_max_cycles(env: Any) -> int:
    """Return the step limit that an environment declares, or 0 if it declares none."""
    inside = getattr(env.unwrapped, "aec_env", env).unwrapped
    places = env.unwrapped, inside, getattr(inside, "env", None)
    return int(next((limit for one in places if (limit := getattr(one, "max_cycles", None))), 0))


def make_zero_value(space: Any) -> Any:
    """Return the value of a Gymnasium space that is nearest to zeros."""
    if hasattr(space, "spaces"):
        parts = space.spaces
        return (
            {x: make_zero_value(parts[x]) for x in parts}
            if isinstance(parts, Mapping)
            else tuple(map(make_zero_value, parts))
        )
    zeros = np.zeros(space.shape, space.dtype)
    return np.clip(zeros, space.low, space.high) if hasattr(space, "low") else zeros + getattr(space, "start", 0)


def map_arrays(change: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Apply a function to the corresponding arrays of values with equal nesting."""
    if isinstance(value, Mapping):
        return {name: map_arrays(change, part, *(x[name] for x in others)) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map_arrays(change, part, *(x[i] for x in others)) for i, part in enumerate(value))
    return change(value, *others)


def _stack_as(like: Any, *values: Any) -> np.ndarray:
    return np.stack([np.asarray(x) for x in values]).astype(like.dtype, casting="same_kind")


def _count_choices(space: Any) -> int:
    """Return the number of actions of a Discrete space, or 0 for any other; MultiBinary has `n`, too."""
    return int(space.n) if hasattr(space, "start") else 0
