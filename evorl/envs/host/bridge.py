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
from evorl.envs.host.layout import Described
from evorl.envs.host.places import Here, Places
from evorl.envs.host.played import Layout
from evorl.envs.host.workers import Workers
from evorl.envs.suite import frozen, take_limit
from evorl.errors import OptionError, require, require_whole
from evorl.types import HostParams, HostState, Key, TimeStep


class Bridge(ABC):
    """An environment on the host, whose steps are calls of its pool."""

    fresh_reset, restart = True, False
    workers: int = 0
    batch: int = 0

    @cached_property
    @abstractmethod
    def _described(self) -> Described:
        """Its spaces, and what their values are made of; raises OptionError."""
        ...

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

    @abstractmethod
    def places(self) -> Places:
        """Where there is to be one of it, or many."""
        ...

    def reset(self, key: Key, params: HostParams) -> tuple[HostState, Any]:
        return calls.reset(self, key, params)

    def step(self, key: Key, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
        del key  # its noise is its own, from the seed of its episode on
        return calls.step(self, env_state, action, params)


@dataclass(frozen=True)
class Placed(Bridge, ABC):
    """One that is made of its name and options, in this process or in workers; HostEnv says what the others mean."""

    name: str
    options: Mapping[str, Any] = field(default_factory=FrozenDict)
    workers: int = 0
    timeout_seconds: float = 60
    restart: bool = False
    max_episode_steps: int = 0
    batch: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", frozen(self.options))
        require_whole("workers", self.workers, 0)
        require_whole("batch", self.batch, 0)
        require(not self.batch or self.workers > 0, "batch", self.batch, "needs workers, env.workers=1 or more")
        require(self.timeout_seconds > 0, "timeout_seconds", self.timeout_seconds, "must be above 0")
        take_limit(self, self.own_limit)
        _ = self._described, self.recipe if self.workers else None

    @abstractmethod
    def own_limit(self) -> int:
        """After how many steps it ends by itself; raises OptionError where it does not say."""
        ...

    @abstractmethod
    def make(self) -> Any:
        """One of it."""
        ...

    @cached_property
    @abstractmethod
    def recipe(self) -> bytes:
        """What a worker makes one of; raises OptionError where that cannot be sent to it."""
        ...

    def places(self) -> Places:
        if not self.workers:
            return Here(self.make, self.layout)
        return Workers(self.workers, self.recipe, self.layout, self.timeout_seconds, self.batch > 0)

    def cannot_be_made(self, error: Exception) -> OptionError:
        """What is raised where that has failed."""
        return OptionError(f"env.name={self.name}: cannot be made: {calls.first_line(error)}")
