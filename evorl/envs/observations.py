"""Wrappers of what is seen: as one vector, in another dtype, with the time; and of how long."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from evorl.envs.wrappers import View, Wrapper
from evorl.errors import require, require_whole
from evorl.networks.features import features
from evorl.spaces import (
    Box,
    Dict,
    MultiBinary,
    Simple,
    Space,
    flatten,
    leaves,
    mapped,
    seen,
    showing,
    shown,
    unflatten,
    visible,
)
from evorl.types import Key, TimeStep

REAL = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Flatten(View):
    """The inner environment, of which one sees a vector: the parts side by side, whole numbers of a choice one-hot.

    Pixels, whole numbers of a Box, are fractions of the largest bound.
    """

    @property
    def screen(self) -> Space:
        ends = [_ends(leaf) for leaf in leaves(visible(self.inner.observation_space))]
        low, high = (np.concatenate(bounds) for bounds in zip(*ends, strict=True))
        return Box(tuple(low.tolist()), tuple(high.tolist()), low.shape)

    def show(self, obs: Any) -> Any:
        return features(visible(self.inner.observation_space), obs)


@dataclass(frozen=True)
class Cast(View):
    """The inner environment, whose real observations have another dtype, such as bfloat16, half the memory."""

    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        require(self.dtype in REAL, "dtype", self.dtype, f"must be one of {', '.join(REAL)}")

    @property
    def screen(self) -> Space:
        return mapped(visible(self.inner.observation_space), self._cast)

    def show(self, obs: Any) -> Any:
        space = visible(self.inner.observation_space)
        parts = zip(leaves(self.screen), flatten(space, obs), strict=True)
        return unflatten(space, [part.astype(leaf.dtype) for leaf, part in parts])

    def _cast(self, space: Simple) -> Simple:
        real = isinstance(space, Box) and jnp.issubdtype(space.dtype, jnp.floating)
        return replace(space, dtype=self.dtype) if real else space


@struct.dataclass
class TimedState:
    inner: Any
    steps: Any  # [] int32


@dataclass(frozen=True)
class TimeLimit(Wrapper):
    """The inner environment, whose episodes are truncated after so many steps at the latest."""

    steps: int = 1000

    def __post_init__(self) -> None:
        require_whole("steps", self.steps)

    @property
    def max_episode_steps(self) -> int:
        return min(self.steps, self.inner.max_episode_steps)

    def reset(self, key: Key, params: Any) -> tuple[TimedState, Any]:
        inner, obs = self.inner.reset(key, params)
        return TimedState(inner, jnp.int32(0)), obs

    def step(self, key: Key, env_state: TimedState, action: Any, params: Any) -> tuple[TimedState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        steps = env_state.steps + 1
        over = ~timestep.terminated & (steps >= self.steps)
        return TimedState(inner, steps), replace(timestep, truncated=timestep.truncated | over)


@dataclass(frozen=True)
class TimeSeen(Wrapper):
    """The inner environment, of which one also sees the share of the longest episode that has passed, as "time" [1].

    Source: Pardo et al. 2018, arXiv:1712.00378, section 3. What was seen without it is "obs", but the parts of a dict
    stay where they are.
    """

    @property
    def observation_space(self) -> Space:
        space = self.inner.observation_space
        inside = visible(space)
        parts = inside.parts if isinstance(inside, Dict) else {"obs": inside}
        return showing(space, Dict({**parts, "time": Box(0.0, 1.0, (1,))}))

    def reset(self, key: Key, params: Any) -> tuple[TimedState, Any]:
        inner, obs = self.inner.reset(key, params)
        return TimedState(inner, jnp.int32(0)), self._timed(obs, jnp.int32(0))

    def step(self, key: Key, env_state: TimedState, action: Any, params: Any) -> tuple[TimedState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        steps = env_state.steps + 1
        return TimedState(inner, steps), replace(timestep, obs=self._timed(timestep.obs, steps))

    def _timed(self, obs: Any, steps: Any) -> Any:
        space = self.inner.observation_space
        inside = seen(space, obs)
        parts = inside if isinstance(visible(space), Dict) else {"obs": inside}
        return shown(space, obs, {**parts, "time": jnp.float32(steps)[None] / self.max_episode_steps})


def _ends(space: Simple) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of the numbers that features makes of it."""
    if not isinstance(space, Box | MultiBinary):
        return np.zeros(sum(space.choices)), np.ones(sum(space.choices))
    low, high = (bound.ravel().astype(float) for bound in space.bounds)
    largest = (
        max(np.abs(low).max(), np.abs(high).max())
        if np.issubdtype(space.dtype, np.integer) and isinstance(space, Box)
        else 1.0
    )
    return low / largest, high / largest
