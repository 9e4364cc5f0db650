"""Base classes of environments that run on the host."""

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
    """Base class of environments that run on the host: reset and step are calls of the environment's pool."""

    fresh_reset, restart = True, False
    workers: int = 0
    batch: int = 0

    @cached_property
    @abstractmethod
    def _spaces_and_layout(self) -> SpacesAndLayout:
        """Return the spaces and the buffer layout; raise OptionError if the environment cannot be created."""
        ...

    @property
    def layout(self) -> Layout:
        """Return the buffer layout of the environment's observations, actions and rewards."""
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
        """Create the backend that runs any number of copies of the environment."""
        ...

    def reset(self, key: Key, params: HostParams) -> tuple[HostState, Any]:
        return calls.reset_host_env(self, key, params)

    def step(self, key: Key, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
        del key  # the environment's randomness follows from the seed of its episode
        return calls.step_host_env(self, env_state, action, params)


@dataclass(frozen=True)
class NamedHostEnv(HostEnvBase, ABC):
    """Base class of host environments that are created from a name and options.

    Args:
        name: Id of the environment in its library.
        options: Keyword arguments of the environment's constructor.
        workers: Number of worker processes, which share the environments; 0 runs them in this process.
        timeout_seconds: Seconds without an answer after which a worker has failed.
        restart: Whether an environment that fails starts a new episode. If False, a failure ends the
            training.
        max_episode_steps: Steps after which an episode is truncated; 0 takes the environment's own limit.
        batch: Number of environments that a step of all environments waits for; needs workers. 0 waits for
            all of them.

    Raises:
        OptionError: If a value is not allowed or the environment cannot be created.
    """

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
        require(not self.batch or self.workers > 0, "batch", self.batch, "needs env.workers=1 or more")
        require(self.timeout_seconds > 0, "timeout_seconds", self.timeout_seconds, "must be above 0")
        set_default_limit(self, self.default_step_limit)
        _ = self._spaces_and_layout, self.env_spec_bytes if self.workers else None

    @abstractmethod
    def default_step_limit(self) -> int:
        """Return the environment's own step limit per episode; raise OptionError if it has none."""
        ...

    @abstractmethod
    def make(self) -> Any:
        """Create one environment in this process."""
        ...

    @cached_property
    @abstractmethod
    def env_spec_bytes(self) -> bytes:
        """Return the pickled description from which a worker creates the environment.

        Raises:
            OptionError: If the description cannot be pickled.
        """
        ...

    def create_backend(self) -> HostBackend:
        if not self.workers:
            return LocalBackend(self.make, self.layout)
        return SubprocessBackend(self.workers, self.env_spec_bytes, self.layout, self.timeout_seconds, self.batch > 0)

    def make_creation_error(self, error: Exception) -> OptionError:
        """Return the error to raise when the environment cannot be created."""
        return OptionError(f"env.name={self.name}: cannot be created: {calls.summarize_error(error)}")
