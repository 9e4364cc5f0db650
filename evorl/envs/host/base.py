"""What environments on the host have in common: what is asked of them, and where they are."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from flax.core import FrozenDict

from evorl import spaces
from evorl.envs.host import calls
from evorl.envs.host.backends import HostBackend, LocalBackend
from evorl.envs.host.layout import SpacesAndLayout
from evorl.envs.host.serial_envs import Layout
from evorl.envs.host.subprocess_backend import SubprocessBackend
from evorl.envs.suites.common import freeze, set_default_limit
from evorl.errors import OptionError, require, require_int
from evorl.types import HostParams, HostState, Key, TimeStep


class HostEnvBase(ABC):
    """An environment on the host, whose steps are calls of its pool."""

    fresh_reset, restart = True, False
    workers: int = 0
    batch: int = 0

    @cached_property
    @abstractmethod
    def _spaces_and_layout(self) -> SpacesAndLayout:
        """Its spaces, and what their values are made of; raises OptionError."""
        ...

    @property
    def layout(self) -> Layout:
        """What its observations and actions are made of."""
        return self._spaces_and_layout[2]

    @property
    def observation_space(self) -> spaces.Space:
        return self._spaces_and_layout[0]

    @property
    def action_space(self) -> spaces.Space:
        return self._spaces_and_layout[1]

    @property
    def default_params(self) -> HostParams:
        return HostParams(seed=np.zeros(2, np.uint32), workers=self.workers, batch=self.batch)

    @abstractmethod
    def create_backend(self) -> HostBackend:
        """Where there is to be one of it, or many."""
        ...

    def reset(self, key: Key, params: HostParams) -> tuple[HostState, Any]:
        return calls.reset_host_env(self, key, params)

    def step(self, key: Key, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
        del key  # its noise is its own, from the seed of its episode on
        return calls.step_host_env(self, env_state, action, params)


@dataclass(frozen=True)
class NamedHostEnv(HostEnvBase, ABC):
    """One that is made of its name and options, in this process or in workers; HostEnv says what the others mean."""

    name: str
    options: Mapping[str, Any] = field(default_factory=FrozenDict)
    workers: int = 0
    timeout_seconds: float = 60
    restart: bool = False
    max_episode_steps: int = 0
    batch: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", freeze(self.options))
        require_int("workers", self.workers, 0)
        require_int("batch", self.batch, 0)
        require(not self.batch or self.workers > 0, "batch", self.batch, "needs workers, env.workers=1 or more")
        require(self.timeout_seconds > 0, "timeout_seconds", self.timeout_seconds, "must be above 0")
        set_default_limit(self, self.default_step_limit)
        _ = self._spaces_and_layout, self.env_spec_bytes if self.workers else None

    @abstractmethod
    def default_step_limit(self) -> int:
        """After how many steps it ends by itself; raises OptionError where it does not say."""
        ...

    @abstractmethod
    def make(self) -> Any:
        """One of it."""
        ...

    @cached_property
    @abstractmethod
    def env_spec_bytes(self) -> bytes:
        """What a worker makes one of; raises OptionError where that cannot be sent to it."""
        ...

    def create_backend(self) -> HostBackend:
        if not self.workers:
            return LocalBackend(self.make, self.layout)
        return SubprocessBackend(self.workers, self.env_spec_bytes, self.layout, self.timeout_seconds, self.batch > 0)

    def make_creation_error(self, error: Exception) -> OptionError:
        """What is raised where that has failed."""
        return OptionError(f"env.name={self.name}: cannot be made: {calls.summarize_error(error)}")
