"""Gymnasium environments as environments of evorl."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict

from evorl import spaces
from evorl.envs.host import pools
from evorl.envs.host.layout import layout
from evorl.envs.host.merged import merged
from evorl.envs.host.played import Layout
from evorl.errors import OptionError, require, unknown
from evorl.types import HostParams, HostState, Key, TimeStep


@dataclass(frozen=True)
class HostEnv:
    """Any environment of Gymnasium by its id, gymnasium.make(name, **options), which lives on the host.

    A state holds a lease of it, so that it cannot be copied or gone back to: each state is stepped once. It lies in
    this process, or, with workers, in as many others. One that raises, or, with workers, does not answer for
    timeout_seconds, ends the training; with restart it begins anew, and nothing is learned of the step.
    max_episode_steps 0 takes the environment's own limit.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=FrozenDict)
    workers: int = 0
    timeout_seconds: float = 60
    restart: bool = False
    max_episode_steps: int = 0

    fresh_reset = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", _frozen(self.options))
        require(self.workers >= 0, "workers", self.workers, "must not be negative")
        require(self.timeout_seconds > 0, "timeout_seconds", self.timeout_seconds, "must be above 0")
        require(self.max_episode_steps >= 0, "max_episode_steps", self.max_episode_steps, "must not be negative")
        if not self.max_episode_steps:
            limit = self.spec.max_episode_steps
            require(limit is not None, "max_episode_steps", 0, f"{self.name} has no limit of its own; give one")
            object.__setattr__(self, "max_episode_steps", int(limit))
        _ = self._described

    @cached_property
    def spec(self) -> Any:
        """What Gymnasium knows by this name; raises OptionError."""
        try:
            import gymnasium
        except ImportError as error:
            missing = "needs gymnasium; pip install 'evorl-jax[host]'"
            raise OptionError(f"env.name={self.name}: {missing}") from error
        try:
            return gymnasium.spec(self.name)
        except gymnasium.error.UnregisteredEnv:
            raise unknown("gymnasium environment", self.name, gymnasium.registry, "gymnasium.pprint_registry()") from None
        except (gymnasium.error.Error, ImportError) as error:
            raise OptionError(f"env.name={self.name}: {_first_line(error)}") from None

    def make(self) -> Any:
        """One of it, as Gymnasium makes it."""
        import gymnasium

        limit = self.max_episode_steps or None
        return gymnasium.make(self.spec, limit, disable_env_checker=True, **_plain(self.options))

    @cached_property
    def _described(self) -> tuple[spaces.Space, spaces.Space, Layout]:
        try:
            env = self.make()
        except Exception as error:
            raise OptionError(f"env.name={self.name}: cannot be made: {_first_line(error)}") from error
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
        return HostParams(workers=self.workers)

    def reset(self, key: Key, params: HostParams) -> tuple[HostState, Any]:
        data = jax.random.key_data(key).astype(jnp.uint32)
        lease, acts = (jnp.asarray(x, dtype) for x, dtype in ((params.lease, jnp.int32), (params.acts, bool)))
        call = merged(self._begin, self._answer(False))
        lease, steps, *obs = call(acts, jnp.asarray(params.leaves, bool), lease, data)
        return HostState(lease, steps), spaces.unflatten(self.observation_space, obs)

    def step(self, key: Key, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
        del key  # its noise is its own, from the seed of its episode on
        parts = spaces.flatten(self.action_space, action)
        given = [jnp.asarray(part, leaf.dtype) for part, leaf in zip(parts, self.layout.action, strict=True)]
        call = merged(self._step, self._answer(True))
        acts = jnp.asarray(params.acts, bool)
        lease, steps, *answer = call(acts, env_state.lease, env_state.steps, *given)
        *obs, reward, terminated, truncated = answer
        seen = spaces.unflatten(self.observation_space, obs)
        return HostState(lease, steps), TimeStep(seen, reward, terminated, truncated)

    def _answer(self, stepped: bool) -> list[jax.ShapeDtypeStruct]:
        """The shapes of what the host answers for one."""
        seen = [(leaf.shape, leaf.dtype) for leaf in self.layout.obs]
        outcome = [((), "float32"), ((), "bool"), ((), "bool")] if stepped else []
        found = [((), "int32"), ((), "uint32"), *seen, *outcome]
        return [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in found]

    def _begin(self, acts: np.ndarray, leaves: np.ndarray, lease: np.ndarray, key: np.ndarray) -> list[np.ndarray]:
        return pools.of(self).begin(acts, leaves, lease, _seeds(key))

    def _step(self, acts: np.ndarray, lease: np.ndarray, steps: np.ndarray, *action: np.ndarray) -> list[np.ndarray]:
        return pools.of(self).step(acts, lease, steps, *action)


def _seeds(key: np.ndarray) -> np.ndarray:
    """63 bits of each key, [n, words]."""
    first, last = key[:, 0].astype(np.uint64), key[:, -1].astype(np.uint64)
    return (first << np.uint64(31)) ^ last


def _frozen(value: Any) -> Any:
    """The same, hashable; raises OptionError."""
    if isinstance(value, Mapping):
        return FrozenDict({name: _frozen(one) for name, one in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    try:
        hash(value)
    except TypeError:
        raise OptionError(f"env.options={value}: must be numbers, words, lists or mappings") from None
    return value


def _plain(value: Any) -> Any:
    """Options as Gymnasium takes them."""
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


