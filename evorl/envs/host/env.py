"""Gymnasium environments as environments of evorl."""

import importlib
import pickle
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evorl.envs.host.base import NamedHostEnv
from evorl.envs.host.calls import summarize_error
from evorl.envs.host.layout import SpacesAndLayout, describe_spaces
from evorl.envs.host.serial_envs import MaskedEnv
from evorl.envs.suites.common import unfreeze
from evorl.errors import OptionError, require, unknown_name_error
from evorl.spaces import Discrete, MultiDiscrete, ObsWithActionMask, choice_counts


@dataclass(frozen=True)
class HostEnv(NamedHostEnv):
    """Any environment of Gymnasium by its id, gymnasium.make(name, **options), which lives on the host.

    A state holds a lease of it, so that it cannot be copied or gone back to: each state is stepped once. It lies in
    this process, or, with workers, in as many others. One that raises, or, with workers, does not answer for
    timeout_seconds, ends the training; with restart it begins anew, and nothing is learned of the step.
    max_episode_steps 0 takes the environment's own limit. With action_mask observations say which actions are legal
    (spaces.ObsWithActionMask), by the "action_mask" of its infos. A `reward_space` of several numbers, as
    MO-Gymnasium's environments have, gives rewards of as many; LinearReward makes them one. With a batch, which needs
    workers, a step of all environments goes on once so many of them have answered: of those of several copies, or fewer
    that act, the same share.
    """

    action_mask: bool = False

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
            raise unknown_name_error(
                "gymnasium environment", name, gymnasium.registry, "gymnasium.pprint_registry()"
            ) from None
        except (gymnasium.error.Error, ImportError) as error:
            raise OptionError(f"env.name={self.name}: {summarize_error(error)}") from None

    def default_step_limit(self) -> int:
        limit = self.spec.max_episode_steps
        require(limit is not None, "max_episode_steps", 0, f"{self.name} has no limit of its own; give one")
        return int(limit)

    def make(self) -> Any:
        env = self._make_plain()
        return MaskedEnv(env, self._num_masked) if self.action_mask else env

    def _make_plain(self) -> Any:
        import gymnasium

        limit = self.max_episode_steps or None
        return gymnasium.make(self.spec, limit, disable_env_checker=True, **unfreeze(self.options))

    @property
    def _num_masked(self) -> int:
        """Return how many actions a mask is of; 0 where none is asked for."""
        space = self.observation_space
        return sum(space.choices) if isinstance(space, ObsWithActionMask) else 0

    @cached_property
    def env_spec_bytes(self) -> bytes:
        try:
            limit = self.max_episode_steps or None
            return pickle.dumps((self.spec, limit, unfreeze(self.options), self._num_masked))
        except Exception as error:
            why = f"{self.name} cannot be sent to another process; register it as 'module:Class'"
            raise OptionError(f"env.workers={self.workers}: {why}: {summarize_error(error)}") from error

    @cached_property
    def _spaces_and_layout(self) -> SpacesAndLayout:
        from evorl.envs.suites.gymnasium import from_gymnasium_space

        try:
            env = self._make_plain()
        except Exception as error:
            raise self.make_creation_error(error) from error
        seen, action = from_gymnasium_space(env.observation_space), from_gymnasium_space(env.action_space)
        rewards = getattr(getattr(env.unwrapped, "reward_space", None), "shape", None) or ()
        env.close()
        if self.action_mask:
            discrete = isinstance(action, Discrete | MultiDiscrete)
            require(discrete, "action_mask", True, f"must be false, as actions are a {type(action).__name__}")
            seen = ObsWithActionMask(seen, tuple(choice_counts(action)))
        return describe_spaces(seen, action, () if rewards == (1,) else tuple(rewards))
