"""Wrappers that change observations: flattening, dtype and elapsed time; and a time limit."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int

from evorl.envs.wrappers import ObservationWrapper, RewardTransform, Wrapper, require_single_agent
from evorl.errors import require, require_int
from evorl.networks.features import features
from evorl.spaces import (
    Box,
    Dict,
    MultiBinary,
    Simple,
    Space,
    flatten,
    get_visible_obs,
    get_visible_space,
    leaf_spaces,
    map_leaves,
    unflatten,
    with_visible_obs,
    with_visible_space,
)
from evorl.types import Key, State, TimeStep

FLOAT_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class FlattenObservation(ObservationWrapper):
    """Environment whose observations are flattened to one vector.

    Discrete values become one-hot. Integers of a Box (pixels) are divided by its largest absolute bound.

    Args:
        inner: Wrapped environment.
    """

    def __post_init__(self) -> None:
        require_single_agent(self)

    @property
    def output_space(self) -> Space:
        ends = [_feature_bounds(leaf) for leaf in leaf_spaces(get_visible_space(self.inner.observation_space))]
        low, high = (np.concatenate(bounds) for bounds in zip(*ends, strict=True))
        return Box(tuple(low.tolist()), tuple(high.tolist()), low.shape)

    def transform_obs(self, obs: Any) -> Any:
        return features(get_visible_space(self.inner.observation_space), obs)


@dataclass(frozen=True)
class DtypeObservation(ObservationWrapper):
    """Environment whose floating-point observations have another dtype, such as bfloat16, which halves their memory.

    Args:
        inner: Wrapped environment.
        dtype: "float32", "bfloat16" or "float16".
    """

    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        require(self.dtype in FLOAT_DTYPES, "dtype", self.dtype, f"must be one of {', '.join(FLOAT_DTYPES)}")

    @property
    def output_space(self) -> Space:
        return map_leaves(get_visible_space(self.inner.observation_space), self._cast_space)

    def transform_obs(self, obs: Any) -> Any:
        space = get_visible_space(self.inner.observation_space)
        parts = zip(leaf_spaces(self.output_space), flatten(space, obs), strict=True)
        return unflatten(space, [part.astype(leaf.dtype) for leaf, part in parts])

    def _cast_space(self, space: Simple) -> Simple:
        real = isinstance(space, Box) and jnp.issubdtype(space.dtype, jnp.floating)
        return replace(space, dtype=self.dtype) if real else space


@struct.dataclass
class StepCountState:
    inner: State
    steps: Int[Array, ""]


@dataclass(frozen=True)
class TimeLimit(Wrapper):
    """Environment whose episodes are truncated after a number of steps.

    Args:
        inner: Wrapped environment.
        steps: Maximum number of steps of an episode.
    """

    steps: int = 1000

    def __post_init__(self) -> None:
        require_int("steps", self.steps)
        env = self.inner
        while isinstance(env, Wrapper):
            pays = not isinstance(env, RewardTransform) or env.delay == 1
            require(
                pays, "steps", self.steps, "must be a limit inside of the delayed reward, or its last rewards are lost"
            )
            env = env.inner

    @property
    def max_episode_steps(self) -> int:
        return min(self.steps, self.inner.max_episode_steps)

    def reset(self, key: Key, params: Any) -> tuple[StepCountState, Any]:
        inner, obs = self.inner.reset(key, params)
        return StepCountState(inner, jnp.int32(0)), obs

    def step(self, key: Key, env_state: StepCountState, action: Any, params: Any) -> tuple[StepCountState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        steps = env_state.steps + 1
        over = jnp.logical_not(timestep.terminated) & (steps >= self.steps)
        return StepCountState(inner, steps), replace(timestep, truncated=timestep.truncated | over)


@dataclass(frozen=True)
class TimeAwareObservation(Wrapper):
    """Environment whose observations also contain the elapsed time.

    The time is the fraction of `max_episode_steps` that has passed, as the entry "time", shape [1]. If the
    observation is a dict, the time is added to it; otherwise, the observation becomes the entry "obs" of a
    dict.

    Args:
        inner: Wrapped environment.

    Source: Pardo et al. 2018, arXiv:1712.00378, section 3.
    """

    def __post_init__(self) -> None:
        require_single_agent(self)
        inside = get_visible_space(self.inner.observation_space)
        has_time = isinstance(inside, Dict) and "time" in inside.parts
        require(not has_time, "wrappers", type(self).__name__, 'needs an observation without an entry "time"')

    @property
    def observation_space(self) -> Space:
        space = self.inner.observation_space
        inside = get_visible_space(space)
        parts = inside.parts if isinstance(inside, Dict) else {"obs": inside}
        return with_visible_space(space, Dict({**parts, "time": Box(0.0, 1.0, (1,))}))

    def reset(self, key: Key, params: Any) -> tuple[StepCountState, Any]:
        inner, obs = self.inner.reset(key, params)
        return StepCountState(inner, jnp.int32(0)), self._add_time(obs, jnp.int32(0))

    def step(self, key: Key, env_state: StepCountState, action: Any, params: Any) -> tuple[StepCountState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        steps = env_state.steps + 1
        return StepCountState(inner, steps), replace(timestep, obs=self._add_time(timestep.obs, steps))

    def _add_time(self, obs: Any, steps: Any) -> Any:
        space = self.inner.observation_space
        inside = get_visible_obs(space, obs)
        parts = inside if isinstance(get_visible_space(space), Dict) else {"obs": inside}
        time = jnp.minimum(jnp.float32(steps)[None] / self.max_episode_steps, 1)  # a level may have its own limit
        return with_visible_obs(space, obs, {**parts, "time": time})


def _feature_bounds(space: Simple) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the entries into which `features` turns a space."""
    if not isinstance(space, Box | MultiBinary):
        return np.zeros(sum(space.choices)), np.ones(sum(space.choices))
    low, high = (bound.ravel().astype(float) for bound in space.bounds)
    largest = (
        max(np.abs(low).max(), np.abs(high).max())
        if np.issubdtype(space.dtype, np.integer) and isinstance(space, Box)
        else 1.0
    )
    return low / largest, high / largest
