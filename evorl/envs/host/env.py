"""Gymnasium environments that run on the host."""

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
from evorl.part_docs import complete_docstring
from evorl.spaces import Discrete, MultiDiscrete, ObsWithActionMask, choice_counts


@complete_docstring
@dataclass(frozen=True)
class HostEnv(NamedHostEnv):
    """Any Gymnasium environment by its id, `gymnasium.make(name, **options)`, run on the host.

    The JAX state holds only a lease, a handle to an environment in this process or in one of `workers`
    processes. So a state cannot be copied or restored, and each state can be stepped only once.

    If the environment raises, or a worker does not answer for `timeout_seconds`, the training ends. With
    `restart` the environment starts a new episode instead, and nothing is learned from the failed step.

    If the environment has a `reward_space` with several components, as in MO-Gymnasium, rewards are vectors
    of that size; `LinearReward` reduces them to a scalar.

    With `batch`, a step of all environments returns as soon as `batch` of them have answered. If several
    copies of the environments are vmapped, or fewer environments are active, a step waits for the same
    fraction.

    Args:
        action_mask: Whether observations include the action mask (`spaces.ObsWithActionMask`), taken from
            "action_mask" in the environment's infos. Needs Discrete or MultiDiscrete actions.
    """

    action_mask: bool = False

    @staticmethod
    def names() -> list[str]:
        """Return the ids of all registered Gymnasium environments, sorted."""
        import gymnasium

        return sorted(gymnasium.registry)

    @cached_property
    def spec(self) -> Any:
        """Return Gymnasium's spec of the environment.

        A name of the form `module:id` imports the module first.

        Raises:
            OptionError: If the module cannot be imported or Gymnasium does not know the id.
        """
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
        """Return the step limit in Gymnasium's spec.

        Raises:
            OptionError: If the environment has no limit.
        """
        limit = self.spec.max_episode_steps
        require(limit is not None, "max_episode_steps", 0, f"{self.name} has no default limit; give one")
        return int(limit)

    def make(self) -> Any:
        """Create one environment, whose observations include the action mask if `action_mask` is set."""
        env = self._make_plain()
        return MaskedEnv(env, self._num_masked) if self.action_mask else env

    def _make_plain(self) -> Any:
        import gymnasium

        limit = self.max_episode_steps or None
        return gymnasium.make(self.spec, limit, disable_env_checker=True, **unfreeze(self.options))

    @property
    def _num_masked(self) -> int:
        """Return the length of the action mask, or 0 without `action_mask`."""
        space = self.observation_space
        return sum(space.choices) if isinstance(space, ObsWithActionMask) else 0

    @cached_property
    def env_spec_bytes(self) -> bytes:
        """Return the pickled spec, limit, options and mask length, from which a worker creates the environment.

        Raises:
            OptionError: If they cannot be pickled.
        """
        try:
            limit = self.max_episode_steps or None
            return pickle.dumps((self.spec, limit, unfreeze(self.options), self._num_masked))
        except Exception as error:
            why = f"{self.name} cannot be pickled for a worker process; register it as 'module:Class'"
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
            require(
                discrete,
                "action_mask",
                True,
                f"must be false: only discrete actions have a mask, not {type(action).__name__}",
            )
            seen = ObsWithActionMask(seen, tuple(choice_counts(action)))
        return describe_spaces(seen, action, () if rewards == (1,) else tuple(rewards))
