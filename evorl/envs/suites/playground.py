"""Adapter for MuJoCo Playground (Zakka et al. 2025, arXiv:2502.08844)."""

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict

from evorl import mesh, package
from evorl.envs import viewer
from evorl.envs.bodies import build_solids, render_poses
from evorl.envs.suites.common import (
    SharedLeaves,
    SuiteState,
    cast_obs,
    freeze,
    import_extra,
    in_full_precision,
    infer_space,
    set_default_limit,
)
from evorl.envs.suites.warp_worlds import CONTACT_OVERFLOWS, IMPLS, batch_worlds, silence_solver_limits
from evorl.errors import OptionError, require, unknown_name_error
from evorl.spaces import Box, Dict, PrivilegedObs, Space
from evorl.types import Key, TimeStep

SUITES = ("dm_control_suite", "locomotion", "manipulation")
STATE, PRIVILEGED = "state", "privileged_state"  # entries of the observations of robots
WORLDS = 1024  # number of worlds for whose contacts a task without settings of Playground has room


@dataclass(frozen=True)
class Playground:
    """A MuJoCo Playground task by its name, such as Playground("CheetahRun"), with actions in [-1, 1].

    If a task has a privileged state, its observation space is a PrivilegedObs: policies see the entry
    "state", and critics and state values the entry "privileged_state", which contains the former.

    Robots need models of MuJoCo Menagerie, which `mujoco-menagerie prefetch` downloads. A robot whose model
    is missing is refused, because evorl downloads nothing.

    With impl="warp", all vectorized environments share one array of contacts. Its length, `naconmax`, grows
    with their number, unless `options` contains it. In a step in which it is too short, the rewards are NaN,
    so that the step is excluded from learning.

    Args:
        name: One of `names()`.
        max_episode_steps: Steps after which an episode is truncated; 0 takes the task's own limit. If the task
            repeats actions (`action_repeat` of its config), a step is that many steps of the task.
        impl: Physics implementation: "jax" or "warp" (MJX-Warp, which is made for GPUs and also runs on
            CPUs).
        options: Entries of the task's config, such as {"ctrl_dt": 0.02}. Entries may be nested, as in
            {"reward_config": {"scales": {"energy": 0.0}}}.

    Raises:
        OptionError: If a value is not allowed, or the package or the robot models are missing.

    Source: Zakka et al. 2025, arXiv:2502.08844.
    """

    name: str
    max_episode_steps: int = 0
    impl: str = "jax"
    options: Mapping[str, Any] = field(default_factory=FrozenDict)

    default_params = None
    fresh_reset = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", freeze(self.options))
        require(self.impl in IMPLS, "impl", self.impl, f"must be one of {', '.join(IMPLS)}")
        set_default_limit(self, lambda: -(-self.env._config.episode_length // self._action_repeat))

    @staticmethod
    def names() -> list[str]:
        """Return the names of all tasks."""
        return list(import_extra("mujoco_playground", "playground").registry.ALL_ENVS)

    @cached_property
    def _env_and_config(self) -> tuple[Any, Any]:
        registry = import_extra("mujoco_playground", "playground").registry
        if self.name not in registry.ALL_ENVS:
            raise unknown_name_error("task of Playground", self.name, registry.ALL_ENVS, "--list env=playground")
        if self.name not in registry.dm_control_suite.ALL_ENVS:
            _provide_robots(self.name)
        config = registry.get_default_config(self.name)
        given = {"impl": self.impl, **_flatten(self.options, config, f"option of {self.name}")}
        if self.max_episode_steps:  # some tasks observe how much of the episode is over
            given["episode_length"] = self.max_episode_steps * given.get(
                "action_repeat", config.get("action_repeat", 1)
            )
        try:
            with mesh.eager_mode():
                env = registry.load(self.name, config, given)
        except MissingRobotError as error:
            raise OptionError(f"env.name={self.name}: {error}") from error
        if self.impl == "warp" and hasattr(env, "_mjx_model"):
            env._mjx_model = silence_solver_limits(env._mjx_model)
        return env, config

    @property
    def env(self) -> Any:
        """Return the wrapped task."""
        return self._env_and_config[0]

    @property
    def _action_repeat(self) -> int:
        return int(self.env._config.get("action_repeat", 1))

    @cached_property
    def observation_space(self) -> Space:
        space = infer_space(jax.eval_shape(self.env.reset, jax.random.key(0)).obs)
        if not isinstance(space, Dict) or not {STATE, PRIVILEGED} <= set(space.parts):
            return space
        seen = {name: part for name, part in space.parts.items() if name != PRIVILEGED}
        return PrivilegedObs(seen[STATE] if len(seen) == 1 else Dict(seen), space.parts[PRIVILEGED])

    @property
    def action_space(self) -> Space:
        return Box(-1.0, 1.0, (self.env.action_size,))

    @in_full_precision
    def reset(self, key: Key, params: Any) -> tuple[SuiteState, Any]:
        del params
        inner, obs = self._reset_worlds(key) if self.impl == "warp" else self._reset_world(key)
        return SuiteState.init(inner), obs

    @in_full_precision
    def step(self, key: Key, env_state: SuiteState, action: Any, params: Any) -> tuple[SuiteState, TimeStep]:
        del key, params
        step = self._step_worlds if self.impl == "warp" else self._step_world
        inner, obs, reward, done = step(env_state.inner, action)
        state = env_state.advance(inner)
        return state, state.to_timestep(obs, reward, done > 0, self.max_episode_steps)

    def _reset_world(self, key: Key) -> tuple[Any, Any]:
        inner = self.env.reset(key)
        return inner, self._convert_obs(inner.obs)

    def _step_world(self, inner: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        def step(inner: Any, _: None) -> tuple[Any, Any]:
            own = jax.tree.map(lambda x: x, inner)  # copies the containers, since tasks write into them
            after = self.env.step(own, action)
            return after, after.reward

        if self._action_repeat == 1:
            after, reward = step(inner, None)
        else:  # as in Brax's trainers
            after, rewards = jax.lax.scan(step, inner, length=self._action_repeat)
            reward = rewards.sum(0)
        return after, self._convert_obs(after.obs), reward, after.done

    @cached_property
    def _reset_worlds(self) -> Callable[..., Any]:
        def run(n: int, keys: Any) -> tuple[Any, Any]:
            sized = self._with_room_for(n)
            inner, obs = jax.vmap(sized._reset_world)(keys)
            return self._contacts.remove(inner), obs

        return batch_worlds(run)

    @cached_property
    def _step_worlds(self) -> Callable[..., Any]:
        def run(n: int, states: Any, actions: Any) -> tuple[Any, ...]:
            sized = self._with_room_for(n)
            restore = lambda state: sized._contacts.restore(state)  # noqa: E731
            inner, obs, reward, done = jax.vmap(lambda state, action: sized._step_world(restore(state), action))(
                states, actions
            )
            if hasattr(inner.data._impl, "overflow"):
                reward = jnp.where(inner.data._impl.overflow & CONTACT_OVERFLOWS, jnp.nan, reward)
            return self._contacts.remove(inner), obs, reward, done

        return batch_worlds(run)

    @cached_property
    def _contacts(self) -> SharedLeaves:
        """Return the arrays that all worlds share, which are mostly their contacts."""
        return SharedLeaves(self.env.reset)

    @cached_property
    def _contacts_per_world(self) -> float:
        """Return the number of contacts of a world for which the task has room; 0 if it has a fixed number of all."""
        registry, limit = import_extra("mujoco_playground", "playground").registry, self.env._config.get("naconmax")
        if "naconmax" in self.options or limit is None:
            return 0
        suite = next(name for name in SUITES if self.name in getattr(registry, name).ALL_ENVS)
        try:
            settings = importlib.import_module(f"mujoco_playground.config.{suite}_params").brax_ppo_config(self.name)
            return limit / settings.num_envs
        except (ImportError, ValueError):  # a task that was registered without settings
            return limit / WORLDS

    def _with_room_for(self, worlds: int) -> "Playground":
        """Return the same environment, with room for the contacts of this number of worlds."""
        needed = int(np.ceil(self._contacts_per_world * worlds))
        if needed <= (self.env._config.get("naconmax") or 0):
            return self
        env, config = copy.copy(self.env), copy.deepcopy(self.env._config)
        with config.unlocked():
            config.naconmax = needed
        env._config = config
        sized = copy.copy(self)  # a frozen dataclass keeps cached properties in its dict
        sized.__dict__["_env_and_config"] = env, self._env_and_config[1]
        sized.__dict__["_contacts"] = self._contacts.resize(env.reset)
        return sized

    def _convert_obs(self, obs: Any) -> Any:
        if isinstance(self.observation_space, PrivilegedObs):
            seen = {name: x for name, x in obs.items() if name != PRIVILEGED}
            obs = {"obs": seen[STATE] if len(seen) == 1 else seen, "state": obs[PRIVILEGED]}
        return cast_obs(obs, self.observation_space)

    @property
    def render_fps(self) -> float:
        """Return the environment steps per second of simulated time."""
        return 1 / (float(self.env.dt) * self._action_repeat)

    def render_frames(self, states: Sequence[SuiteState]) -> list[np.ndarray]:
        """Render states with MuJoCo.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [height, width, 3].

        Raises:
            OptionError: If MuJoCo finds no OpenGL on this machine.
        """
        data = [state.inner.data for state in states]
        mocaps = [(np.asarray(one.mocap_pos), np.asarray(one.mocap_quat)) for one in data]
        return render_poses(self.env.mj_model, [np.asarray(one.qpos) for one in data], mocaps)

    def draw(self, states: list[SuiteState], folder: Path) -> list[Path]:
        """Write viewer.html, a page that shows the bodies in 3D.

        Args:
            states: States of one episode, in order.
            folder: Folder to write into.

        Returns:
            Paths of the written files.
        """
        poses = [np.concatenate([state.inner.data.xpos, state.inner.data.xquat], 1)[1:] for state in states]
        shown, (bodies, ground) = folder / "viewer.html", build_solids(self.env.mj_model)
        page = viewer.build_page(f"{self.name}, Playground", bodies, np.array(poses), 1 / self.render_fps, ground)
        shown.write_text(page, "utf-8")
        return [shown]


def _flatten(options: Mapping[str, Any], config: Any, what: str, prefix: str = "") -> dict[str, Any]:
    """Return nested entries of a config by their dotted names; raise OptionError for one that it does not have."""
    found = {}
    for name, value in options.items():
        if name not in config:
            raise unknown_name_error(what, prefix + name, [prefix + known for known in config])
        nested = isinstance(value, Mapping) and hasattr(config[name], "keys")
        found |= _flatten(value, config[name], what, f"{prefix}{name}.") if nested else {prefix + name: value}
    return found


class MissingRobotError(OptionError):
    """Error of a robot that has not been downloaded."""


class _PrefetchedRobots:
    """Folder of the robots that `mujoco-menagerie prefetch` has downloaded, in place of Playground's own folder."""

    def __init__(self, menagerie: Any) -> None:
        self._menagerie = menagerie

    def exists(self) -> bool:
        """Return True, so that Playground does not download the robots."""
        return True

    def __truediv__(self, name: str) -> Any:
        """Return the folder of a robot; raise MissingRobotError if it has not been downloaded."""
        cache, robot = self._menagerie.Cache(), self._menagerie.get(name)
        folder = cache.root / name if cache.root else cache.model_path(robot)
        if not (folder.is_dir() if cache.root else cache.is_cached(robot)):
            how = f"download it once: mujoco-menagerie prefetch {name}"
            raise MissingRobotError(f"needs the robot {name} of MuJoCo Menagerie, which is not in {folder}; {how}")
        return import_extra("etils.epath", "playground").Path(folder)


def _provide_robots(task: str) -> None:
    """Let Playground find the robots of the package mujoco-menagerie, if it has none; raise OptionError without it."""
    playground = import_extra("mujoco_playground._src.mjx_env", "playground")
    if playground.MENAGERIE_PATH.exists():
        return
    try:
        playground.MENAGERIE_PATH = _PrefetchedRobots(importlib.import_module("mujoco_menagerie"))
    except ImportError as error:
        what = f"env.name={task}: needs the robots of the package mujoco-menagerie, which is missing"
        raise OptionError(f"{what}; {package.install_command('playground')}") from error
