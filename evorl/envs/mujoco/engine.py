"""MuJoCo on the host: a batch of states and actions in, their successors out. Nothing is kept between calls."""

import contextlib
import importlib
import inspect
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from evorl.envs.mujoco.tasks import TASKS, Step
from evorl.envs.suite import imported
from evorl.errors import OptionError, unknown

LEAST = 8  # rows that are worth a thread
_making = threading.Lock()


@dataclass(frozen=True)
class Rig:
    """A model and its data of Gymnasium's environment, which one thread uses at a time."""

    env: Any
    views: Mapping[str, np.ndarray]  # what the task reads of its data


@dataclass(frozen=True)
class Engine:
    """One of Gymnasium's tasks with its options, on so many threads.

    A state is a row of float64: MuJoCo's integration state (mjSTATE_INTEGRATION), and the place where a task has one.
    All functions may be called from several threads at once.
    """

    name: str
    options: Mapping[str, Any]
    threads: int

    @property
    def task(self) -> Any:
        return TASKS[self.name]

    @cached_property
    def env(self) -> Any:
        """Gymnasium's, for its spaces, its options and its model; its data are never stepped."""
        return made(self.name, self.options)

    @property
    def limit(self) -> int:
        """The steps of an episode."""
        import gymnasium

        return int(gymnasium.spec(self.name).max_episode_steps or 0)

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of MuJoCo's state, of a whole row, and of an observation."""
        import mujoco

        own = mujoco.mj_stateSize(self.env.model, mujoco.mjtState.mjSTATE_INTEGRATION)
        return own, own + (self.task.place is not None), self.env.observation_space.shape[0]

    @cached_property
    def _idle(self) -> deque[Rig]:
        return deque()

    @cached_property
    def _executor(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max(self.threads - 1, 1), f"mujoco-{self.name}")

    @contextlib.contextmanager
    def _rig(self) -> Iterator[Rig]:
        try:
            rig = self._idle.pop()
        except IndexError:
            env = made(self.name, self.options)
            rig = Rig(env, self.task.reads(env.data))
        try:
            yield rig
        finally:
            self._idle.append(rig)

    def reset(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """States [n, numbers] and observations [n, size] float32 of Gymnasium's own reset with seeds [n] uint64."""
        rows, seen = self._empty(len(seeds))

        def begin(rig: Rig, i: int) -> None:
            rig.env.reset(seed=int(seeds[i]))

        self._all(begin, rows, seen)
        return self._states(rows, seen), self._observed(rows, seen)

    def step(self, states: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """States after actions [n, size] float32, observations [n, size], rewards and ends [n]."""
        import mujoco

        own = self.sizes[0]
        rows, seen = self._empty(len(states))
        rows[:] = states[:, :own]
        before = states[:, -1] if self.task.place else rows[:, 1].copy()
        control, skip, state = action.astype(np.float64), self.env.frame_skip, mujoco.mjtState.mjSTATE_INTEGRATION
        load, run, forces = mujoco.mj_setState, mujoco.mj_step, mujoco.mj_rnePostConstraint

        def advance(rig: Rig, i: int) -> None:
            model, data = rig.env.model, rig.env.data
            load(model, data, rows[i], state)
            data.ctrl[:] = control[i]
            run(model, data, skip)
            forces(model, data)

        self._all(advance, rows, seen)
        after, obs = self._states(rows, seen), self._observed(rows, seen)
        velocity = (after[:, -1 if self.task.place else 1] - before) / self.env.dt
        return after, obs, *self.task.outcome(self.env, Step(self._named(rows, seen), action, velocity))

    def _empty(self, n: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        views = self.task.reads(self.env.data)
        return np.empty((n, self.sizes[0])), {name: np.empty((n, *view.shape)) for name, view in views.items()}

    def _all(self, change: Callable[[Rig, int], None], rows: np.ndarray, seen: Mapping[str, np.ndarray]) -> None:
        """Changes the data of a rig for each row, and takes it and what the task reads down."""
        import mujoco

        store, state = mujoco.mj_getState, mujoco.mjtState.mjSTATE_INTEGRATION

        def some(first: int, end: int) -> None:
            with self._rig() as rig:
                taken = [(seen[name], view) for name, view in rig.views.items()]
                model, data = rig.env.model, rig.env.data
                for i in range(first, end):
                    change(rig, i)
                    store(model, data, rows[i], state)
                    for into, view in taken:
                        into[i] = view

        parts = max(min(self.threads, len(rows) // LEAST), 1)
        ends = np.linspace(0, len(rows), parts + 1).astype(int).tolist()
        others = [self._executor.submit(some, *ends[k : k + 2]) for k in range(1, parts)]
        some(*ends[:2])
        for other in others:
            other.result()

    def _named(self, rows: np.ndarray, seen: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        nq, nv = self.env.model.nq, self.env.model.nv
        return {"qpos": rows[:, 1 : 1 + nq], "qvel": rows[:, 1 + nq : 1 + nq + nv], **seen}

    def _observed(self, rows: np.ndarray, seen: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.concatenate(self.task.obs(self.env, self._named(rows, seen)), 1, dtype=np.float32, casting="same_kind")

    def _states(self, rows: np.ndarray, seen: Mapping[str, np.ndarray]) -> np.ndarray:
        if self.task.place is None:
            return rows
        return np.concatenate([rows, self.task.place(self.env, seen)[:, None]], 1)


def made(name: str, options: Mapping[str, Any]) -> Any:
    """Gymnasium's environment without its wrappers; raises OptionError."""
    if name not in TASKS:
        raise unknown("task of Gymnasium's MuJoCo", name, TASKS, "--list env=mujoco")
    import gymnasium

    imported("gymnasium.envs.mujoco", "mujoco")
    with _making, quiet():
        module, _, kind = str(gymnasium.spec(name).entry_point).partition(":")
        allowed = options_of(module, kind)
        for option in options:
            if option not in allowed:
                raise unknown(f"option of {name}", option, allowed)
        try:
            return gymnasium.make(name, disable_env_checker=True, **options).unwrapped
        except Exception as error:
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise OptionError(f"env.options={dict(options)}: Gymnasium's {name} answers: {said}") from error


def options_of(module: str, kind: str) -> list[str]:
    """What the class of a task takes by name."""
    made_by = vars(importlib.import_module(module))[kind].__init__
    return [name for name, p in inspect.signature(made_by).parameters.items() if p.kind == p.POSITIONAL_OR_KEYWORD][1:]


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what MuJoCo says of old models."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
