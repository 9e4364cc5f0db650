"""Gymnasium environments as environments of evorl."""

import importlib
import pickle
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evorl.envs.host.bridge import Placed
from evorl.envs.host.calls import first_line
from evorl.envs.host.layout import Described, described
from evorl.envs.suite import plain
from evorl.errors import OptionError, require, unknown


@dataclass(frozen=True)
class HostEnv(Placed):
    """Any environment of Gymnasium by its id, gymnasium.make(name, **options), which lives on the host.

    A state holds a lease of it, so that it cannot be copied or gone back to: each state is stepped once. It lies in
    this process, or, with workers, in as many others. One that raises, or, with workers, does not answer for
    timeout_seconds, ends the training; with restart it begins anew, and nothing is learned of the step.
    max_episode_steps 0 takes the environment's own limit. With a batch, which needs workers, a step of all slots goes
    on once so many of them have answered: of those of several copies, or fewer that act, the same share.
    """

    @staticmethod
    def names() -> list[str]:
        """The ids of all that is registered."""
        import gymnasium

        return sorted(gymnasium.registry)

    @cached_property
    def spec(self) -> Any:
        """What Gymnasium knows by this name; raises OptionError."""
        import gymnasium

        module, _, name = self.name.rpartition(":")
        try:
            if module:
                importlib.import_module(module)
            return gymnasium.spec(name)
        except gymnasium.error.UnregisteredEnv:
            raise unknown("gymnasium environment", name, gymnasium.registry, "gymnasium.pprint_registry()") from None
        except (gymnasium.error.Error, ImportError) as error:
            raise OptionError(f"env.name={self.name}: {first_line(error)}") from None

    def own_limit(self) -> int:
        limit = self.spec.max_episode_steps
        require(limit is not None, "max_episode_steps", 0, f"{self.name} has no limit of its own; give one")
        return int(limit)

    def make(self) -> Any:
        import gymnasium

        limit = self.max_episode_steps or None
        return gymnasium.make(self.spec, limit, disable_env_checker=True, **plain(self.options))

    @cached_property
    def recipe(self) -> bytes:
        try:
            return pickle.dumps((self.spec, self.max_episode_steps or None, plain(self.options)))
        except Exception as error:
            why = f"{self.name} cannot be sent to another process; register it as 'module:Class'"
            raise OptionError(f"env.workers={self.workers}: {why}: {first_line(error)}") from error

    @cached_property
    def _described(self) -> Described:
        from evorl.envs.gymnasium import from_gymnasium

        try:
            env = self.make()
        except Exception as error:
            raise self.cannot_be_made(error) from error
        found = described(from_gymnasium(env.observation_space), from_gymnasium(env.action_space))
        env.close()
        return found
