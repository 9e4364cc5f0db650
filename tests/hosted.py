"""Gymnasium environments that do what they are told to, for tests: they import no JAX."""

import ctypes
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete


class Told(gymnasium.Env):
    """Episodes of `length` steps, of which one does `fault` where it is due; each is told of in a file of `log`.

    An observation is (seed of the episode modulo 2^20, steps), the reward the step. It is due at step `at` of the
    episode after `episodes` others in this environment, and, where `once` is a file, nowhere after that is there.
    A step takes `seconds`; with the fault "slow" only those of the first environment that is made do.
    """

    def __init__(self, length=5, fault="", at=2, episodes=0, once="", log="", seconds=0.0, dtype="float32"):
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Discrete(2, start=3)
        self.length, self.fault, self.at, self.once, self.log = length, fault, at, once, log
        self.left, self.seconds, self.dtype, self.seed = episodes, seconds, dtype, 0
        if fault == "constructor" and self._due():
            raise RuntimeError("told to")
        if fault == "slow" and not self._due():
            self.seconds = 0.0

    def _due(self):
        if self.once:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
        return True

    def _say(self, *words):
        if self.log:
            with open(Path(self.log) / f"{os.getpid()}-{id(self)}", "a") as file:
                print(*words, file=file, flush=True)

    def _see(self):
        return np.array([self.seed, self.steps], self.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._say("reset", seed)
        self.left -= 1
        self.seed, self.steps = (seed or 0) % 2**20, 0
        if self.fault == "reset" and self.left < 0 and self._due():
            raise RuntimeError("told to")
        return self._see(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self._say("step", action)
        self.steps += 1
        if self.seconds:
            time.sleep(self.seconds)
        obs, reward = self._see(), float(self.steps)
        if self.fault and self.left < 0 and self.steps == self.at and self._due():
            match self.fault:
                case "step":
                    raise RuntimeError("told to")
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "exit":
                    os._exit(3)
                case "hang":
                    time.sleep(3600)
                case "stuck":
                    ctypes.PyDLL(None).sleep(3600)  # which keeps Python's lock
                case "shape":
                    obs = np.zeros(3, np.float32)
                case "dtype":
                    obs = obs.astype(np.complex64)
                case "nan":
                    obs[1] = np.nan
                case "reward":
                    reward = np.nan
        return obs, reward, False, self.steps >= self.length, {}


gymnasium.register("Told-v0", entry_point=Told, max_episode_steps=50)  # pyright: ignore[reportArgumentType]


class Wide(Told):
    """Observes integers of 64 bits, the last of which is `last`."""

    def __init__(self, last=0, **options):
        super().__init__(**options)
        self.observation_space, self.last = Box(0, 2**40, (2,), np.int64), last

    def _see(self):
        return np.array([7, self.last])


class Broken(Told):
    """Ends its episode with NaN, after which it cannot be reset; closing it writes to the file `closed`."""

    def __init__(self, closed="", **options):
        super().__init__(fault="reset", episodes=1, **options)
        self.closed = closed

    def step(self, action):
        return np.full(2, np.nan, np.float32), 0.0, True, False, {}

    def close(self):
        if self.closed:
            with open(self.closed, "a") as file:
                file.write("x")


class Simulated(Told):
    """Starts processes that never end when its first episode begins, and writes their numbers to the file `started`.

    One is a fork that ignores signals, one is started by a shell and has all inheritable files, one by a daemon thread.
    """

    def __init__(self, started="", **options):
        super().__init__(**options)
        self.started, self.begun = started, False

    def reset(self, *, seed=None, options=None):
        if not self.begun:
            self.begun = True
            self._fork()
            os.system(f"sleep 1000 & echo $! >> {self.started}")
            written = threading.Event()
            threading.Thread(target=self._sleep, args=(written,), daemon=True).start()
            written.wait()
        return super().reset(seed=seed, options=options)

    def _write(self, number):
        with open(self.started, "a") as file:
            print(number, file=file)

    def _fork(self):
        number = os.fork()
        if number:
            self._write(number)
            return
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGIO):
            signal.signal(one, signal.SIG_IGN)
        time.sleep(1000)
        os._exit(0)

    def _sleep(self, written):
        with subprocess.Popen(["sleep", "1000"]) as process:
            self._write(process.pid)
            written.set()


gymnasium.register("Simulated-v0", entry_point=Simulated, max_episode_steps=50)  # pyright: ignore[reportArgumentType]
gymnasium.register("Wide-v0", entry_point=Wide, max_episode_steps=50)  # pyright: ignore[reportArgumentType]
gymnasium.register("Broken-v0", entry_point=Broken, max_episode_steps=50)  # pyright: ignore[reportArgumentType]


class Nested(gymnasium.Env):
    """Answers an action, of containers in containers, with it."""

    action_space = gymnasium.spaces.Dict(
        {
            "b": gymnasium.spaces.Tuple([Discrete(3, start=-1), Box(-1, 1, (2,), np.float64)]),
            "a": gymnasium.spaces.Dict({"x": MultiBinary(4), "y": MultiDiscrete([3, 2])}),
        }
    )
    observation_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.action_space.seed(seed)
        return self.action_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return action, 1, False, False, {}


gymnasium.register("Nested-v0", entry_point=Nested, max_episode_steps=4)  # pyright: ignore[reportArgumentType]


class Walk(gymnasium.Env):
    """Three steps along a line whose reward depends on everything, so that every hyperparameter can matter."""

    observation_space = Box(-2, 2, (1,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.at, {}

    def step(self, action):
        reward = float(self.at[0] - (action[0] - 0.4 * self.at[0]) ** 2)
        self.at = self.at + np.float32(0.3)
        return self.at, reward, False, False, {}


gymnasium.register("Walk-v0", entry_point=Walk, max_episode_steps=3)  # pyright: ignore[reportArgumentType]


class Loose(gymnasium.Env):
    """Five steps whose answers are not quite of their spaces, as those of many environments are not.

    obs: "float64" or "list" of tenths of steps. reward: "array" of the step, or of the objectives (step, -step), which
    "declared" has a reward_space of.
    """

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, obs="float64", reward="array"):
        self.obs, self.reward = obs, reward
        if reward == "declared":
            self.reward_space = Box(-5, 5, (2,), np.float32)

    def _see(self):
        seen = [self.steps / 10, -self.steps / 10]
        return seen if self.obs == "list" else np.array(seen)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), {}

    def step(self, action):
        self.steps += 1
        reward = np.array([float(self.steps)])
        return self._see(), reward if self.reward == "array" else [self.steps, -self.steps], False, False, {}


gymnasium.register("Loose-v0", entry_point=Loose, max_episode_steps=5)  # pyright: ignore[reportArgumentType]


class Masked(gymnasium.Env):
    """Five steps, in each of which every other action is legal, as the infos say; one that is not raises.

    The action is one of four numbers from 1 on or, in several, of two and three; the reward is the first of them.
    """

    observation_space = Box(0, 5, (1,), np.float32)

    def __init__(self, several=False):
        self.action_space = MultiDiscrete([2, 3]) if several else Discrete(4, start=1)
        self.several = several

    def _masks(self):
        sizes = self.action_space.nvec if self.several else [self.action_space.n]
        return tuple(((np.arange(n) + self.steps) % 2 == 0).astype(np.int8) for n in sizes)

    def _answer(self):
        masks = self._masks()
        return np.float32([self.steps]), {"action_mask": masks if self.several else masks[0]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._answer()

    def step(self, action):
        chosen = action if self.several else [action - 1]
        if not all(mask[i] for mask, i in zip(self._masks(), chosen, strict=True)):
            raise ValueError(f"{action} is not legal")
        self.steps += 1
        obs, info = self._answer()
        return obs, float(chosen[0]), False, False, info


gymnasium.register("Masked-v0", entry_point=Masked, max_episode_steps=5)  # pyright: ignore[reportArgumentType]
