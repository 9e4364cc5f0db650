"""Adapter for MuJoCo Playground (Zakka et al. 2025, arXiv:2502.08844)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
from flax.core import FrozenDict

from evorl import mesh
from evorl.envs.suites.common import (
    SharedLeaves,
    SuiteState,
    cast_obs,
    import_extra,
    in_full_precision,
    infer_space,
    set_default_limit,
)
from evorl.errors import OptionError, require, unknown_name_error
from evorl.spaces import Box, Space
from evorl.types import Key, TimeStep

IMPLS = ("jax", "warp")


@dataclass(frozen=True)
class Playground:
    """A MuJoCo Playground task by its name, such as Playground("CheetahRun"), with actions in [-1, 1].

    The locomotion and manipulation tasks need robot models of MuJoCo Menagerie, which are not part of the
    package. If they are missing, the task is refused, because nothing is downloaded.

    Args:
        name: One of `names()`.
        max_episode_steps: Steps after which an episode is truncated; 0 takes the task's own limit.
        impl: Physics implementation: "jax" or "warp" (MJX-Warp, which is made for GPUs and also runs on
            CPUs).
        options: Entries of the task's config, such as {"ctrl_dt": 0.02}.

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
        object.__setattr__(self, "options", FrozenDict(self.options))
        require(self.impl in IMPLS, "impl", self.impl, f"must be one of {', '.join(IMPLS)}")
        set_default_limit(self, lambda: self._env_and_config[1].episode_length)

    @staticmethod
    def names() -> list[str]:
        """Return the names of all tasks."""
        return list(import_extra("mujoco_playground", "playground").registry.ALL_ENVS)

    @cached_property
    def _env_and_config(self) -> tuple[Any, Any]:
        registry = import_extra("mujoco_playground", "playground").registry
        if self.name not in registry.ALL_ENVS:
            raise unknown_name_error("task of Playground", self.name, registry.ALL_ENVS, "--list env=playground")
        robots = import_extra("mujoco_playground._src.mjx_env", "playground").MENAGERIE_PATH
        of_package = self.name in registry.dm_control_suite.ALL_ENVS
        if not of_package and not robots.exists():
            where = f"{robots.parent.name}/{robots.name} of mujoco_playground"
            raise OptionError(
                f"env.name={self.name}: needs the files of MuJoCo Menagerie in {where}, which are missing"
            )
        config = registry.get_default_config(self.name)
        for option in self.options:
            if option not in config:
                raise unknown_name_error(f"option of {self.name}", option, config.keys())
        with mesh.eager_mode():
            return registry.load(self.name, config, {"impl": self.impl, **self.options}), config

    @property
    def env(self) -> Any:
        """Return the wrapped task."""
        return self._env_and_config[0]

    @cached_property
    def observation_space(self) -> Space:
        return infer_space(jax.eval_shape(self.env.reset, jax.random.key(0)).obs)

    @property
    def action_space(self) -> Space:
        return Box(-1.0, 1.0, (self.env.action_size,))

    @cached_property
    def _warp_leaves(self) -> SharedLeaves:
        return SharedLeaves(self.env.reset)

    @in_full_precision
    def reset(self, key: Key, params: Any) -> tuple[SuiteState, Any]:
        del params
        inner = self.env.reset(key)
        obs = cast_obs(inner.obs, self.observation_space)
        return SuiteState.init(self._warp_leaves.remove(inner) if self.impl == "warp" else inner), obs

    @in_full_precision
    def step(self, key: Key, env_state: SuiteState, action: Any, params: Any) -> tuple[SuiteState, TimeStep]:
        del key, params
        own = self._warp_leaves.restore(env_state.inner) if self.impl == "warp" else env_state.inner
        own = jax.tree.map(lambda x: x, own)  # copies the containers, since tasks write into them
        inner = self.env.step(own, action)
        obs = cast_obs(inner.obs, self.observation_space)
        state = env_state.advance(self._warp_leaves.remove(inner) if self.impl == "warp" else inner)
        return state, state.to_timestep(obs, inner.reward, inner.done > 0, self.max_episode_steps)
