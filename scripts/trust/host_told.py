"""Define a Gymnasium environment that fails as a file requests, and records its answers; it imports no JAX."""

import json
import os
import signal
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

KINDS = ("constructor", "reset", "raise", "kill", "exit", "hang", "spin", "shape", "dtype", "nan", "reward")
LENGTH = 7


class Faulty(gymnasium.Env):
    """Environment with episodes of 7 steps that fails as a file requests.

    `folder` has a file `fault`: {"kind": one of KINDS, "at": the step or start of an environment at which it fails}.
    Only the first environment that gets there fails, once. Answers go to files `answers-*` in `folder`.
    """

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Discrete(4)

    def __init__(self, folder):
        self.folder, self.total, self.starts = Path(folder), 0, 0
        fault = self.folder / "fault"
        self.fault = json.loads(fault.read_text()) if fault.exists() else {"kind": "", "at": 0}
        if self.fault["kind"] == "constructor" and self._claimed():
            raise RuntimeError("told to")

    def _claimed(self):
        try:
            os.close(os.open(self.folder / "claimed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _due(self, kinds, count):
        return self.fault["kind"] in kinds and self.fault["at"] == count and self._claimed()

    def _see(self):
        return np.array([self.seed >> 16 & 0xFFFF, self.seed & 0xFFFF, self.steps], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.steps, self.starts = seed or 0, 0, self.starts + 1
        if self._due(("reset",), self.starts):
            raise RuntimeError("told to")
        return self._see(), {}

    def step(self, action):
        self.steps, self.total = self.steps + 1, self.total + 1
        obs, reward = self._see(), np.float64(self.steps * (action + 1))
        if self._due(KINDS[2:], self.total):
            match self.fault["kind"]:
                case "raise":
                    raise RuntimeError("told to")
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "exit":
                    os._exit(3)
                case "hang":
                    time.sleep(3600)
                case "spin":
                    sum(1 for _ in iter(int, 1))
                case "shape":
                    return obs[:2], reward, False, False, {}
                case "dtype":
                    return obs.astype(np.float64), reward, False, False, {}
                case "nan":
                    return obs * np.nan, reward, False, False, {}
                case "reward":
                    return obs, np.nan, False, False, {}
        with open(self.folder / f"answers-{os.getpid()}", "a") as file:
            print(*map(int, obs[:2]), self.steps, action, int(reward), file=file)
        return obs, reward, self.steps == LENGTH, False, {}


gymnasium.register("Faulty-v0", entry_point="host_told:Faulty", max_episode_steps=50)
