"""EnvPool environments, which a C++ library steps in parallel threads."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from flax.core import FrozenDict

from evorl.envs.host import calls
from evorl.envs.host.backends import compute_max_envs
from evorl.envs.host.base import HostEnvBase
from evorl.envs.host.layout import SpacesAndLayout, describe_spaces
from evorl.envs.host.serial_envs import RESET, STEP, Layout, create_shared_memory
from evorl.envs.suites.common import import_extra, set_default_limit
from evorl.errors import OptionError, require, require_int, unknown_name_error

NO_STEP_LIMIT = 2**31 - 1  # EnvPool's value for "no limit"
MAX_SEED = 2**31 - 1


class EnvPoolBackend:
    """Backend that runs environments in EnvPool.

    All environments that are reset for the first time in one call form one pool of EnvPool.
    """

    def __init__(self, make: Callable[[list[int]], Any], layout: Layout) -> None:
        self.make, self.layout, self.max_envs = make, layout, compute_max_envs(layout)
        self._file = create_shared_memory(layout.nbytes(self.max_envs))
        self.buffers = layout.create_buffers(self.max_envs, self._file)
        self._pools: list[tuple[Any, np.ndarray]] = []  # each pool of EnvPool, and its places
        self._where = np.full((self.max_envs, 2), -1, np.int32)  # by place: pool, and id in the pool
        self._failed: dict[int, str] = {}

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> dict[int, str]:
        new = [i for i, place in enumerate(places) if self._where[place, 0] < 0]
        try:
            if new:
                there = np.array([places[i] for i in new])
                self._pools.append((self.make([seeds[i] % MAX_SEED for i in new]), there))
                self._where[there] = np.stack([np.full(len(new), len(self._pools) - 1), np.arange(len(new))], 1)
            for pool, own, ids in self._group_by_pool(places):
                obs, info = pool.reset(ids)
                self._write_obs(own[info["env_id"]], obs)
        except Exception as error:
            return dict.fromkeys(places, f"{RESET}: {calls.summarize_error(error)}")
        return {}

    def send(self, places: Sequence[int], seeds: Sequence[int] = ()) -> None:
        del seeds
        board = self.buffers
        self._failed = {}
        try:
            leaf, groups = self.layout.action[0], list(self._group_by_pool(places))
            for pool, own, ids in groups:
                pool.send(board["action0"][own[ids]].astype(leaf.native), ids)
            for pool, own, _ in groups:
                obs, reward, terminated, truncated, info = pool.recv()
                there = own[info["env_id"]]
                self._write_obs(there, obs)
                board["reward"][there], board["terminated"][there] = reward, terminated
                board["truncated"][there] = truncated & ~terminated
        except Exception as error:
            self._failed = dict.fromkeys(places, f"{STEP}: {calls.summarize_error(error)}")

    def recv(self, places: Sequence[int], count: int) -> tuple[np.ndarray, dict[int, str]]:
        del count
        return np.ones(len(places), bool), self._failed

    def worker_index(self, place: int) -> None:
        del place

    def close(self, places: Sequence[int] | None = None) -> None:
        if places is not None:
            self._where[list(places)] = -1  # the next reset of these places creates new environments
            return
        while self._pools:
            self._pools.pop()[0].close()
        os.close(self._file)

    def _group_by_pool(self, places: Sequence[int]) -> Any:
        """Yield, for each pool that has some of the places: the pool, all its places, and the given ones' ids in it."""
        where = self._where[list(places)]
        for number in np.unique(where[:, 0]).tolist():
            yield *self._pools[number], where[where[:, 0] == number, 1]

    def _write_obs(self, places: np.ndarray, obs: Any) -> None:
        for i, leaf in enumerate(self.layout.obs):
            part = obs
            for name in leaf.path:
                part = part[name]
            self.buffers[f"obs{i}"][places] = part


@dataclass(frozen=True)
class EnvPool(HostEnvBase):
    """Any EnvPool environment by its id, `envpool.make(name, **options)`, run on the host.

    As with `HostEnv`, a state holds a lease, so that it cannot be copied and can be stepped only once. Only
    the first episode of an environment is seeded from the run's key; the later episodes continue from its
    random state. A failure in EnvPool's C++ code may end the process.

    Args:
        name: Id of the environment in EnvPool.
        options: Keyword arguments of `envpool.make`.
        threads: Number of threads that step the environments; 0 takes all cores.
        max_episode_steps: Steps after which an episode is truncated; 0 takes the environment's own limit.

    Raises:
        OptionError: If a value is not allowed or the environment cannot be created.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=FrozenDict)
    threads: int = 0
    max_episode_steps: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", FrozenDict(self.options))
        require_int("threads", self.threads, 0)
        set_default_limit(self, lambda: self._spec.config.max_episode_steps)
        why = f"{self.name} has no default limit; give one"
        require(self.max_episode_steps < NO_STEP_LIMIT, "max_episode_steps", 0, why)
        _ = self.layout

    @staticmethod
    def names() -> list[str]:
        """Return the ids of all EnvPool environments, sorted."""
        return sorted(import_extra("envpool", "envpool").list_all_envs())

    @cached_property
    def _spec(self) -> Any:
        if self.name not in (known := self.names()):
            raise unknown_name_error("EnvPool environment", self.name, known, "envpool.list_all_envs()")
        try:
            return import_extra("envpool", "envpool").make_spec(self.name, **self.options)
        except Exception as error:
            raise OptionError(f"env.options={dict(self.options)}: {calls.summarize_error(error)}") from None

    @cached_property
    def _spaces_and_layout(self) -> SpacesAndLayout:
        from evorl.envs.suites.gymnasium import from_gymnasium_space

        spec = self._spec
        found = describe_spaces(
            from_gymnasium_space(_drop_sentinel_bounds(spec.gymnasium_observation_space)),
            from_gymnasium_space(spec.gymnasium_action_space),
        )
        if len(found[2].action) != 1:
            raise OptionError(f"env.name={self.name}: has actions of several arrays, which are not supported")
        return found

    def create_backend(self) -> EnvPoolBackend:
        """Create the backend that runs the environments in EnvPool."""
        return EnvPoolBackend(self._make_pool, self.layout)

    def _make_pool(self, seeds: list[int]) -> Any:
        given = {**self.options, "max_episode_steps": self.max_episode_steps, "num_threads": self.threads}
        make = import_extra("envpool", "envpool").make
        return make(self.name, env_type="gymnasium", num_envs=len(seeds), seed=seeds, **given)


def _drop_sentinel_bounds(space: Any) -> Any:
    """Replace the bounds that EnvPool declares for unbounded Boxes by infinite ones.

    EnvPool declares the smallest and the largest positive number of the dtype.
    """
    import gymnasium

    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({name: _drop_sentinel_bounds(part) for name, part in space.spaces.items()})
    dtype: Any = space.dtype
    real = isinstance(space, gymnasium.spaces.Box) and np.issubdtype(dtype, np.floating)
    if not real or not (space.high == np.finfo(dtype).max).all():
        return space
    return gymnasium.spaces.Box(-np.inf, np.inf, space.shape, dtype)
