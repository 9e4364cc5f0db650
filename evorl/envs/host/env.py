"""Gymnasium environments as environments of evorl."""

import importlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from flax.core import FrozenDict

from evorl import spaces
from evorl.envs.host import calls
from evorl.envs.host.calls import first_line
from evorl.envs.host.layout import layout
from evorl.envs.host.places import Here, Places
from evorl.envs.host.played import Layout
from evorl.envs.host.workers import Workers
from evorl.envs.suite import frozen, plain
from evorl.errors import OptionError, require, unknown
from evorl.types import HostParams, HostState, Key, TimeStep


@dataclass(frozen=True)
class HostEnv:
    """Any environment of Gymnasium by its id, gymnasium.make(name, **options), which lives on the host.

    A state holds a lease of it, so that it cannot be copied or gone back to: each state is stepped once. It lies in
    this process, or, with workers, in as many others. One that raises, or, with workers, does not answer for
    timeout_seconds, ends the training; with restart it begins anew, and nothing is learned of the step.
    max_episode_steps 0 takes the environment's own limit. With a batch, which needs workers, a step of all slots goes
    on once so many of them have answered: of those of several copies, or fewer that act, the same share.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=FrozenDict)
    workers: int = 0
    timeout_seconds: float = 60
    restart: bool = False
    max_episode_steps: int = 0
    batch: int = 0

    fresh_reset = True

    def __post_init__(self) -> None:
        require_options(self)
        if not self.max_episode_steps:
            limit = self.spec.max_episode_steps
            require(limit is not None, "max_episode_steps", 0, f"{self.name} has no limit of its own; give one")
            object.__setattr__(self, "max_episode_steps", int(limit))
        _ = self._described, self.recipe if self.workers else None

    @staticmethod
    def names() -> list[str]:
        """The ids of all that is registered."""
        import gymnasium

        return sorted(gymnasium.registry)

    @cached_property
    def spec(self) -> Any:
        """What Gymnasium knows by this name; raises OptionError."""
        try:
            import gymnasium
        except ImportError as error:
            missing = "needs gymnasium; pip install 'evorl-jax[host]'"
            raise OptionError(f"env.name={self.name}: {missing}") from error
        module, _, name = self.name.rpartition(":")
        try:
            if module:
                importlib.import_module(module)
            return gymnasium.spec(name)
        except gymnasium.error.UnregisteredEnv:
            raise unknown("gymnasium environment", name, gymnasium.registry, "gymnasium.pprint_registry()") from None
        except (gymnasium.error.Error, ImportError) as error:
            raise OptionError(f"env.name={self.name}: {first_line(error)}") from None

    def make(self) -> Any:
        """One of it, as Gymnasium makes it."""
        import gymnasium

        limit = self.max_episode_steps or None
        return gymnasium.make(self.spec, limit, disable_env_checker=True, **plain(self.options))

    def places(self) -> Places:
        """Where there is to be one of it, or many."""
        if not self.workers:
            return Here(self.make, self.layout)
        return Workers(self.workers, self.recipe, self.layout, self.timeout_seconds, self.batch > 0)

    @cached_property
    def recipe(self) -> bytes:
        """What a worker makes one of; raises OptionError where that cannot be sent to it."""
        try:
            return pickle.dumps((self.spec, self.max_episode_steps or None, plain(self.options)))
        except Exception as error:
            why = f"{self.name} cannot be sent to another process; register it as 'module:Class'"
            raise OptionError(f"env.workers={self.workers}: {why}: {first_line(error)}") from error

    @cached_property
    def _described(self) -> tuple[spaces.Space, spaces.Space, Layout]:
        try:
            env = self.make()
        except Exception as error:
            raise OptionError(f"env.name={self.name}: cannot be made: {first_line(error)}") from error
        found = layout(env)
        env.close()
        return found

    @property
    def layout(self) -> Layout:
        """What its observations and actions are made of."""
        return self._described[2]

    @property
    def observation_space(self) -> spaces.Space:
        return self._described[0]

    @property
    def action_space(self) -> spaces.Space:
        return self._described[1]

    @property
    def default_params(self) -> HostParams:
        return HostParams(seed=np.zeros(2, np.uint32), workers=self.workers, batch=self.batch)

    def reset(self, key: Key, params: HostParams) -> tuple[HostState, Any]:
        return calls.reset(self, key, params)

    def step(self, key: Key, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
        del key  # its noise is its own, from the seed of its episode on
        return calls.step(self, env_state, action, params)


def require_options(env: Any) -> None:
    """Raises OptionError where a new environment has options, workers or limits that it cannot have."""
    object.__setattr__(env, "options", frozen(env.options))
    require(env.workers >= 0, "workers", env.workers, "must not be negative")
    require(env.batch >= 0, "batch", env.batch, "must not be negative")
    require(not env.batch or env.workers > 0, "batch", env.batch, "needs workers, env.workers=1 or more")
    require(env.timeout_seconds > 0, "timeout_seconds", env.timeout_seconds, "must be above 0")
    require(env.max_episode_steps >= 0, "max_episode_steps", env.max_episode_steps, "must not be negative")
