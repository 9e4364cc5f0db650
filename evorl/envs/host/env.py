"""Gymnasium environments as environments of evorl."""

import importlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict

from evorl import spaces, tree
from evorl.envs.host import pools
from evorl.envs.host.layout import layout
from evorl.envs.host.leases import Fault
from evorl.envs.host.merged import merged
from evorl.envs.host.places import Here, Places
from evorl.envs.host.played import Layout
from evorl.envs.host.workers import Workers
from evorl.errors import OptionError, require, unknown
from evorl.types import HostParams, HostState, Key, TimeStep
from evorl.vector_env import hosts

OUTCOME = (((), "float32"), ((), "bool"), ((), "bool"), ((), "bool"))  # reward, terminated, truncated, begun
SMALL = 4096  # bytes of an observation that travels twice rather than in a call of its own


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
        object.__setattr__(self, "options", _frozen(self.options))
        require(self.workers >= 0, "workers", self.workers, "must not be negative")
        require(self.batch >= 0, "batch", self.batch, "must not be negative")
        require(not self.batch or self.workers > 0, "batch", self.batch, "needs workers, env.workers=1 or more")
        require(self.timeout_seconds > 0, "timeout_seconds", self.timeout_seconds, "must be above 0")
        require(self.max_episode_steps >= 0, "max_episode_steps", self.max_episode_steps, "must not be negative")
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
            raise OptionError(f"env.name={self.name}: {_first_line(error)}") from None

    def make(self) -> Any:
        """One of it, as Gymnasium makes it."""
        import gymnasium

        limit = self.max_episode_steps or None
        return gymnasium.make(self.spec, limit, disable_env_checker=True, **_plain(self.options))

    def places(self) -> Places:
        """Where there is to be one of it, or many."""
        if not self.workers:
            return Here(self.make, self.layout)
        return Workers(self.workers, self.recipe, self.layout, self.timeout_seconds, self.batch > 0)

    @cached_property
    def recipe(self) -> bytes:
        """What a worker makes one of; raises OptionError where that cannot be sent to it."""
        try:
            return pickle.dumps((self.spec, self.max_episode_steps or None, _plain(self.options)))
        except Exception as error:
            why = f"{self.name} cannot be sent to another process; register it as 'module:Class'"
            raise OptionError(f"env.workers={self.workers}: {why}: {_first_line(error)}") from error

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
        return HostParams(seed=np.zeros(2, np.uint32), workers=self.workers, batch=self.batch)

    @property
    def begins_at_once(self) -> bool:
        """Whether a step that ends an episode begins the next one, which saves a call; where it is large, only in a
        batch, of which the others would wait for it.
        """
        return self.batch > 0 or sum(leaf.nbytes for leaf in self.layout.obs) <= SMALL

    def reset(self, key: Key, params: HostParams) -> tuple[HostState, Any]:
        if isinstance(params.begun, HostState):
            return self._state(jnp.abs(params.begun.lease), params.begun.steps), params.begun.first
        flags, lease = _flags(params.acts, params.leaves), jnp.asarray(params.lease, jnp.int32)
        call = merged(self._begin, self._answer(1), self._failed)
        lease, steps, *obs = call(*flags, lease, hosts.seeds(key))
        return self._state(lease, steps), self._seen(obs)

    def step(self, key: Key, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
        del key  # its noise is its own, from the seed of its episode on
        parts = spaces.flatten(self.action_space, action)
        given = [jnp.asarray(part, leaf.dtype) for part, leaf in zip(parts, self.layout.action, strict=True)]
        acts = params.acts & (env_state.lease > 0)
        flags = _flags(acts, params.goes_on if self.begins_at_once else False)
        seed, n = jnp.asarray(params.seed, jnp.uint32), len(self.layout.obs)
        asked = *flags, env_state.lease, env_state.steps, seed, *given
        if self.batch:
            call = merged(self._turn, self._answer(2, (*OUTCOME, ((), "bool"))), self._failed)
            lease, steps, *answer, waits = call(*_flags(env_state.waits), jnp.float32(params.share), *asked)
        else:
            call = merged(self._step, self._answer(1 + self.begins_at_once, OUTCOME), self._failed)
            (lease, steps, *answer), waits = call(*asked), ()
        seen, first, (reward, terminated, truncated, begun) = self._seen(answer[:n]), answer[n:-4], answer[-4:]
        after = HostState(lease, steps, self._seen(first), begun, waits) if first else HostState(lease, steps)
        return after, TimeStep(seen, reward, terminated, truncated)

    def _state(self, lease: Any, steps: Any) -> HostState:
        """That at the start of an episode."""
        if not self.begins_at_once:
            return HostState(lease, steps)
        first, no = tree.zeros(spaces.shapes(self.observation_space)), jnp.zeros_like(lease, bool)
        return HostState(lease, steps, first, no, no if self.batch else ())

    def _seen(self, leaves: Any) -> Any:
        return spaces.unflatten(self.observation_space, leaves)

    def _answer(self, times: int, outcome: Any = ()) -> list[jax.ShapeDtypeStruct]:
        """The shapes of what the host answers for one, with so many observations."""
        seen = [(leaf.shape, leaf.dtype) for leaf in self.layout.obs]
        found = [((), "int32"), ((), "uint32"), *seen * times, *outcome]
        return [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in found]

    def _failed(self, error: BaseException) -> None:
        pools.of(self).fails(Fault(0, None, 0, _first_line(error)))

    def _begin(self, acts: np.ndarray, leaves: np.ndarray, lease: np.ndarray, seed: np.ndarray) -> list[np.ndarray]:
        return pools.of(self).begin(acts, leaves, lease, _number(seed))

    def _turn(self, waits: np.ndarray, share: np.ndarray, *asked: np.ndarray) -> list[np.ndarray]:
        acts, goes_on, lease, steps, seed, *action = asked
        pool, share = pools.of(self), share[acts].max(initial=0)
        return pool.turn(waits, goes_on, _number(seed), float(share), acts, lease, steps, *action)

    def _step(self, acts: np.ndarray, goes_on: np.ndarray, *rest: np.ndarray) -> list[np.ndarray]:
        lease, steps, seed, *action = rest
        pool = pools.of(self)
        lease, steps, *answer = pool.step(acts, lease, steps, *action)
        again = goes_on & (answer[-2] | answer[-1])
        if not self.begins_at_once:
            return [lease, steps, *answer, again]
        first = [np.zeros_like(x) for x in answer[:-3]]
        if again.any():
            found, counted, *first = pool.begin(again, np.zeros_like(again), lease, _number(seed))
            steps, again = np.where(again, counted, steps), again & (found > 0)
        return [lease, steps, *answer[:-3], *first, *answer[-3:], again]


def _flags(*flags: Any) -> list[Any]:
    return [jnp.asarray(flag, bool) for flag in flags]


def _number(seed: np.ndarray) -> np.ndarray:
    """63 bits of each [n, 2]."""
    return (seed[:, 0].astype(np.uint64) << np.uint64(31)) ^ seed[:, 1].astype(np.uint64)


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


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
