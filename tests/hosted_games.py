"""A parallel environment of PettingZoo for tests: it imports no JAX, nor PettingZoo."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

HENS = ("hen_0", "hen_1")


class Farm:
    """A fox, who may rest or hunt, and hunts where its mask says so, and two hens, of which one leaves after 3 steps.

    An agent sees (its number, steps, noise), and earns what it does and the noise. After 4 to 6 steps, by the seed,
    none is there any more; of an even number, or where it cuts, all were truncated. Nobody may be asked for who is not
    there.
    """

    possible_agents = ("fox_0", *HENS)
    state_space = Box(0.0, 9.0, (1,), np.float32)

    def __init__(self, fault=0, limit=0, cuts=False):
        self.cuts, self.fault, self.max_cycles, self.agents = cuts, fault, limit or 6, []
        seen = Box(-1.0, 99.0, (3,), np.float32)
        of_fox = Dict({"observation": Box(1.0, 99.0, (3,), np.float32), "action_mask": Box(0, 1, (4,), np.int8)})
        self.observation_spaces = {"fox_0": of_fox, **dict.fromkeys(HENS, seen)}
        self.action_spaces = {"fox_0": Discrete(4), **dict.fromkeys(HENS, Discrete(2, start=3))}

    @property
    def unwrapped(self):
        return self

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        self.rng, self.steps, self.agents = np.random.default_rng(seed), 0, list(self.possible_agents)
        self.length = self.rng.integers(4, 7)
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents)
        assert all(self.action_spaces[agent].contains(action) for agent, action in actions.items())
        assert self.steps % 2 == 0 or actions["fox_0"] < 2
        self.steps += 1
        if self.fault == self.steps:
            raise RuntimeError("the fox is gone")
        acted, over = self.agents, self.steps == self.length
        even = self.length % 2 == 0
        gone = {agent: over or (agent == "hen_1" and self.steps == 3) for agent in acted}
        self.agents = [agent for agent in acted if not gone[agent]]
        rewards = {agent: float(actions[agent]) + self.rng.random() for agent in acted}
        cut = (over and even) or self.cuts
        terminated = {agent: gone[agent] and not cut for agent in acted}
        truncated = {agent: gone[agent] and cut for agent in acted}
        return self._seen(acted), rewards, terminated, truncated, {agent: {} for agent in acted}

    def state(self):
        return np.array([self.steps], np.float32)

    def close(self):
        pass

    def _seen(self, agents):
        seen = {agent: np.array([int(agent[-1]) + 1, self.steps + 1, 1 + self.rng.random()]) for agent in agents}
        if "fox_0" in seen:
            mask = np.ones(4, np.int8) if self.steps % 2 == 0 else np.array([1, 1, 0, 0], np.int8)
            seen["fox_0"] = {"observation": seen["fox_0"], "action_mask": mask}
        return seen
