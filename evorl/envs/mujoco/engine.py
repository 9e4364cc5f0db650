"""MuJoCo on the host: a batch of states and actions in, their next states out. No state is kept between calls."""

import contextlib
import importlib
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from evorl.envs.bodies import suppress_warnings
from evorl.envs.mujoco.tasks import TASKS, MuJoCoTask, StepQuantities
from evorl.envs.suites.common import import_extra
from evorl.errors import OptionError, unknown_name_error

mujoco = import_extra("mujoco", "mujoco")
STATE = mujoco.mjtState.mjSTATE_INTEGRATION.value  # an int is passed faster than the enum
MIN_THREAD_ROWS = 8  # fewer rows are not worth a thread
Rows: TypeAlias = tuple[np.ndarray, dict[str, np.ndarray]]  # MuJoCo's states, and the other arrays that are read
_make_lock = threading.Lock()


class Simulator(NamedTuple):
    """A Gymnasium environment, which only one thread uses at a time."""

    env: Any  # Gymnasium's MujocoEnv
    model: Any  # its mujoco.MjModel
    data: Any  # its mujoco.MjData
    views: Mapping[str, np.ndarray]  # of the arrays of `data` that the task reads


class Engine:
    """One of Gymnasium's MuJoCo tasks, simulated on several threads.

    A state is a row of float64: MuJoCo's integration state (mjSTATE_INTEGRATION), and for some tasks the
    tracked position. Everything is computed on the engine's own threads, because XLA's threads flush denormal
    numbers to 0. So the results are bitwise identical to Gymnasium's, whichever thread calls and however many
    threads there are.

    Args:
        name: Id of the task, a key of TASKS.
        options: Keyword arguments of Gymnasium's environment.
        threads: Number of threads.
    """

    def __init__(self, name: str, options: Mapping[str, Any], threads: int) -> None:
        import gymnasium

        self.name, self.options, self.threads = name, options, threads
        self.env = make_env(name, options)  # for its spaces, options and model; its data are never stepped
        self.task: MuJoCoTask = TASKS[name]
        self.limit = int(gymnasium.spec(name).max_episode_steps or 0)
        self._own = mujoco.mj_stateSize(self.env.model, STATE)
        self.numbers = self._own + (self.task.tracked_position is not None)
        first = mujoco.mj_stateSize(self.env.model, mujoco.mjtState.mjSTATE_CTRL.value - 1)
        self._control = slice(first, first + self.env.model.nu)
        self._idle: deque[Simulator] = deque()

    @cached_property
    def executor(self) -> ThreadPoolExecutor:
        """Return the thread pool, with all threads started.

        They start at once, because a thread inherits the floating-point mode of the thread that starts it.
        """
        executor, all_of_them = ThreadPoolExecutor(self.threads, "mujoco"), threading.Barrier(self.threads)
        list(executor.map(lambda _: all_of_them.wait(), range(self.threads)))
        return executor

    def reset(self, seeds: np.ndarray) -> tuple[np.ndarray, ...]:
        """Reset environments with Gymnasium's own reset.

        Args:
            seeds: Seeds, uint64 [n].

        Returns:
            States, float64 [n, numbers], and observations, float32 [n, size].
        """
        return self._run_parallel(self._reset_rows, seeds)

    def step(self, states: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """Step environments.

        Args:
            states: States, float64 [n, numbers].
            action: Actions, float32 [n, size].

        Returns:
            States, observations (float32 [n, size]), rewards [n] and terminated [n] after the step.
        """
        return self._run_parallel(self._step_rows, states, action)

    def _run_parallel(self, part: Callable[..., tuple[np.ndarray, ...]], *given: np.ndarray) -> tuple[np.ndarray, ...]:
        n = len(given[0])
        count = max(min(self.threads, n // MIN_THREAD_ROWS), 1)
        ends = pairwise(n * k // count for k in range(count + 1))
        parts = [self.executor.submit(part, *(x[a:b] for x in given)) for a, b in ends]
        found = [part.result() for part in parts]
        return found[0] if len(found) == 1 else tuple(map(np.concatenate, zip(*found, strict=True)))

    def _reset_rows(self, seeds: np.ndarray) -> tuple[np.ndarray, ...]:
        rows, seen = self._allocate_rows(len(seeds))
        with self._borrow_simulator() as rig:
            for i, seed in enumerate(seeds.tolist()):
                rig.env.reset(seed=seed)
                mujoco.mj_getState(rig.model, rig.data, rows[i], STATE)
                for name, view in rig.views.items():
                    seen[name][i] = view
        return self._build_states(rows, seen), self._build_obs(rows, seen)

    def _step_rows(self, states: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, ...]:
        rows, seen = self._allocate_rows(len(states))
        rows[:] = states[:, : self._own]
        rows[:, self._control] = action
        skip, forces = self.env.frame_skip, "cfrc_ext" in seen
        load, run, account, store = mujoco.mj_setState, mujoco.mj_step, mujoco.mj_rnePostConstraint, mujoco.mj_getState
        with self._borrow_simulator() as rig:
            model, data, into = rig.model, rig.data, [(seen[name], view) for name, view in rig.views.items()]
            for i, row in enumerate(rows):
                load(model, data, row, STATE)
                run(model, data, skip)
                if forces:
                    account(model, data)
                store(model, data, row, STATE)
                for array, view in into:
                    array[i] = view
        after, obs = self._build_states(rows, seen), self._build_obs(rows, seen)
        followed = -1 if self.task.tracked_position else 1  # column of the tracked position, or of qpos[0]
        velocity = (after[:, followed] - states[:, followed]) / self.env.dt
        return (
            after,
            obs,
            *self.task.outcome(self.env, StepQuantities(self._name_quantities(rows, seen), action, velocity)),
        )

    @contextlib.contextmanager
    def _borrow_simulator(self) -> Iterator[Simulator]:
        try:
            rig = self._idle.pop()
        except IndexError:
            env = make_env(self.name, self.options)
            rig = Simulator(env, env.model, env.data, self._view_arrays(env.data))
        try:
            yield rig
        finally:
            self._idle.append(rig)

    def _allocate_rows(self, n: int) -> Rows:
        views = self._view_arrays(self.env.data)
        return np.empty((n, self._own)), {name: np.empty((n, *view.shape)) for name, view in views.items()}

    def _view_arrays(self, data: Any) -> Mapping[str, np.ndarray]:
        return {name: getattr(data, name) for name in self.task.reads}

    def _name_quantities(self, rows: np.ndarray, seen: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        nq, nv = self.env.model.nq, self.env.model.nv
        return {"qpos": rows[:, 1 : 1 + nq], "qvel": rows[:, 1 + nq : 1 + nq + nv], **seen}

    def _build_obs(self, rows: np.ndarray, seen: dict[str, np.ndarray]) -> np.ndarray:
        parts = self.task.obs(self.env, self._name_quantities(rows, seen))
        return np.concatenate(parts, 1, dtype=np.float32, casting="same_kind")

    def _build_states(self, rows: np.ndarray, seen: dict[str, np.ndarray]) -> np.ndarray:
        if self.task.tracked_position is None:
            return rows
        return np.concatenate([rows, self.task.tracked_position(self.env, seen)[:, None]], 1)


def make_env(name: str, options: Mapping[str, Any], suite: str = "mujoco") -> Any:
    """Create Gymnasium's environment without its wrappers; raise OptionError for an unknown task or option."""
    import gymnasium

    if name not in TASKS:
        raise unknown_name_error("task of Gymnasium's MuJoCo", name, TASKS, f"--list env={suite}")
    import_extra("gymnasium.envs.mujoco", "mujoco")
    module, _, kind = str(gymnasium.spec(name).entry_point).partition(":")
    allowed = inspect.signature(vars(importlib.import_module(module))[kind]).parameters.values()
    names = [parameter.name for parameter in allowed if parameter.kind == parameter.POSITIONAL_OR_KEYWORD]
    for option in options:
        if option not in names:
            raise unknown_name_error(f"option of {name}", option, names)
    with _make_lock, suppress_warnings(mujoco):
        try:
            return gymnasium.make(name, disable_env_checker=True, **options).unwrapped
        except Exception as error:
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise OptionError(f"env.options={dict(options)}: Gymnasium's {name} raises {said}") from error
