"""Define a Gymnasium environment whose step takes a given time, busy or asleep; it imports no JAX."""

import contextlib
import os
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Slow(gymnasium.Env):
    """Environment whose step is busy for `work` seconds, then asleep for `sleep` seconds.

    Episodes end only at the time limit. If `first` names a file, the environment that resets first creates
    it, and becomes slower by the factor `slower`.
    """

    observation_space = Box(-np.inf, np.inf, (4,), np.float32)
    action_space = Discrete(2)

    def __init__(self, work=0.0, sleep=0.0, first="", slower=100.0):
        self.work, self.sleep, self.first, self.slower = work, sleep, first, slower

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.first:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.first, os.O_CREAT | os.O_EXCL))
                self.work, self.sleep = self.slower * self.work, self.slower * self.sleep
        return np.zeros(4, np.float32), {}

    def step(self, action):
        end = time.perf_counter() + self.work
        while time.perf_counter() < end:
            pass
        if self.sleep:
            time.sleep(self.sleep)
        return np.full(4, action, np.float32), 1.0, False, False, {}


gymnasium.register("Slow-v0", entry_point="host_slow:Slow", max_episode_steps=1000)
