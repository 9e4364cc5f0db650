"""Base classes of wrappers, and wrappers that change rewards and observations."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Float, Int, PyTree, Shaped

from evorl import tree
from evorl.envs import render
from evorl.envs.render import Drawable, Renderable
from evorl.errors import OptionError, require, require_int
from evorl.spaces import (
    Box,
    Dict,
    MultiBinary,
    MultiDiscrete,
    Simple,
    Space,
    flatten,
    get_visible_obs,
    get_visible_space,
    groups,
    leaf_spaces,
    map_leaves,
    unflatten,
    with_visible_obs,
    with_visible_space,
)
from evorl.types import (
    Array,
    Env,
    HasEpisodeInfo,
    HasRankingGroup,
    HasStateMetrics,
    Key,
    Metrics,
    Params,
    State,
    TimeStep,
)


@dataclass(frozen=True)
class Wrapper:
    """Base class of environment wrappers, which passes on everything that a subclass does not define.

    A subclass defines `reset` and `step`. Its state must hold the state of the inner environment as the field
    `inner`.

    Args:
        inner: Wrapped environment.
    """

    inner: Env

    @property
    def observation_space(self) -> Space:
        return self.inner.observation_space

    @property
    def action_space(self) -> Space:
        return self.inner.action_space

    @property
    def max_episode_steps(self) -> int:
        return self.inner.max_episode_steps

    @property
    def default_params(self) -> Any:
        return self.inner.default_params

    @property
    def fresh_reset(self) -> bool:
        return self.inner.fresh_reset

    @property
    def episode_info(self) -> Mapping[str, str]:
        return self.inner.episode_info if isinstance(self.inner, HasEpisodeInfo) else {}

    def state_metrics(self, env_state: State) -> Metrics:
        return self.inner.state_metrics(env_state.inner) if isinstance(self.inner, HasStateMetrics) else {}

    @property
    def ranked(self) -> str:
        is_ranked = isinstance(self.inner, HasRankingGroup) and groups(self.action_space)
        return cast(HasRankingGroup, self.inner).ranked if is_ranked else ""

    @property
    def render_fps(self) -> float | None:
        return render.get_fps(self.inner)

    def render_frames(self, states: Sequence[State]) -> Sequence[np.ndarray]:
        return cast(Renderable, self.inner).render_frames([state.inner for state in states])

    def draw(self, states: list[State], folder: Path) -> list[Path]:
        return self.inner.draw([state.inner for state in states], folder) if isinstance(self.inner, Drawable) else []


def require_single_agent(wrapper: Wrapper) -> None:
    """Raise OptionError if a wrapper for a single agent is around a multi-agent environment."""
    name = type(wrapper).__name__
    require(not groups(wrapper.inner.action_space), "wrappers", name, "does not support multi-agent environments")


@struct.dataclass
class WrapperState:
    inner: State


@struct.dataclass
class LinearRewardParams:
    inner: Params
    weights: Float[Array, " k"] | Sequence[Float[Array, ""] | float]


@dataclass(frozen=True)
class LinearReward(Wrapper):
    """Environment with several objectives, whose reward is their weighted sum.

    The inner rewards, whose leaves are concatenated to [k], are also summed over an episode as "objectives"
    in the episode info. The weights are environment parameters, so that copies of a run may use different
    ones. The return of an episode is the sum of the weighted rewards, since a return is one number.

    Args:
        inner: Environment whose reward has k numbers.
        weights: Weight of each objective, [k].

    Raises:
        OptionError: In `step`, if the number of weights is not k.
    """

    weights: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))

    @property
    def default_params(self) -> LinearRewardParams:
        return LinearRewardParams(self.inner.default_params, self.weights)

    @property
    def episode_info(self) -> Mapping[str, str]:
        return {**super().episode_info, "objectives": "sum"}

    def reset(self, key: Key, params: LinearRewardParams) -> tuple[WrapperState, Any]:
        inner, obs = self.inner.reset(key, params.inner)
        return WrapperState(inner), obs

    def step(
        self, key: Key, env_state: WrapperState, action: Any, params: LinearRewardParams
    ) -> tuple[WrapperState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params.inner)
        objectives = _concatenate_rewards(timestep.reward)
        weights = jnp.asarray(params.weights, jnp.float32)
        require(
            weights.size == objectives.size,
            "weights",
            self.weights,
            f"must be {objectives.size} numbers, one for each objective",
        )
        timestep = timestep.with_rewards(lambda reward: _concatenate_rewards(reward) @ weights)
        return WrapperState(inner), replace(timestep, info={**timestep.info, "objectives": objectives})


def _concatenate_rewards(reward: Any) -> Array:
    """Return the numbers of a reward, concatenated, [k]."""
    return jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(reward)])


@struct.dataclass
class RewardTransformState:
    inner: State
    pending_reward: Float[Array, ""]  # sum of the rewards not given yet
    steps: Int[Array, ""]  # since a reward was last given


@dataclass(frozen=True)
class RewardTransform(Wrapper):
    """Environment whose rewards are scaled, clipped and delayed for learning.

    A reward is multiplied by `scale` and clipped to [-clip, clip]. The rewards are then summed, and their sum
    is given every `delay` steps and at the end of an episode; the other rewards are 0. A delay makes dense
    rewards sparse. Agents and evolution learn from these rewards. Returns remain those of the inner
    environment; the sum of the transformed rewards is recorded as `learned_return`.

    Args:
        inner: Wrapped environment, with one reward.
        scale: Factor of the rewards.
        delay: Number of steps between rewards; 1 for no delay.
        clip: Largest absolute value of a scaled reward; infinite for no clipping.

    Source: Oh et al. 2018, arXiv:1806.05635, section 5.4 (delay).
    """

    scale: float = 1.0
    delay: int = 1
    clip: float = math.inf

    def __post_init__(self) -> None:
        require_single_agent(self)
        require(self.clip > 0, "clip", self.clip, "must be above 0, or inf for none")
        require_int("delay", self.delay)

    def reset(self, key: Key, params: Any) -> tuple[RewardTransformState, Any]:
        inner, obs = self.inner.reset(key, params)
        return RewardTransformState(inner, jnp.float32(0), jnp.int32(0)), obs

    def step(
        self, key: Key, env_state: RewardTransformState, action: Any, params: Any
    ) -> tuple[RewardTransformState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        reward = jnp.clip(self.scale * timestep.reward, -self.clip, self.clip)
        owed, steps = env_state.pending_reward + reward, env_state.steps + 1
        due: Array = (steps >= self.delay) | timestep.terminated | timestep.truncated
        after = RewardTransformState(inner, jnp.where(due, 0.0, owed), jnp.where(due, 0, steps))
        return after, timestep.with_shaped_reward(jnp.where(due, owed, 0.0))


@struct.dataclass
class FrameStackState:
    inner: State
    frames: PyTree[Shaped[Array, "count ..."]]  # the newest last


@dataclass(frozen=True)
class FrameStack(Wrapper):
    """Environment whose observations are the last `count` observations of the inner environment, the newest last.

    An episode starts with `count` copies of the first observation. Leaves [*shape] become [count, *shape], a
    Discrete becomes a MultiDiscrete, and the vectors of a MultiDiscrete are concatenated. An action mask
    and a privileged state belong to the newest observation.

    Args:
        inner: Wrapped environment.
        count: Number of stacked observations.

    Source: Mnih et al. 2015, section "Preprocessing".
    """

    count: int = 4

    def __post_init__(self) -> None:
        require_single_agent(self)
        require_int("count", self.count)

    @property
    def observation_space(self) -> Space:
        space = self.inner.observation_space
        return with_visible_space(space, map_leaves(get_visible_space(space), self._stack_space))

    def reset(self, key: Key, params: Any) -> tuple[FrameStackState, Any]:
        inner, obs = self.inner.reset(key, params)
        frame = get_visible_obs(self.inner.observation_space, obs)
        frames = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.count, *jnp.shape(x))), frame)
        return FrameStackState(inner, frames), self._build_obs(obs, frames)

    def step(self, key: Key, env_state: FrameStackState, action: Any, params: Any) -> tuple[FrameStackState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        frame = get_visible_obs(self.inner.observation_space, timestep.obs)
        frames = tree.shift_in(env_state.frames, frame)
        return FrameStackState(inner, frames), replace(timestep, obs=self._build_obs(timestep.obs, frames))

    def _stack_space(self, space: Simple) -> Simple:
        if isinstance(space, Box | MultiBinary):
            return replace(space, shape=(self.count, *space.shape))
        starts = tuple(np.ravel(space.bounds[0]).tolist())
        return MultiDiscrete(space.choices * self.count, starts * self.count)

    def _build_obs(self, obs: Any, frames: Any) -> Any:
        space = get_visible_space(self.observation_space)
        parts = zip(leaf_spaces(space), flatten(space, frames), strict=True)
        value = unflatten(space, [part.reshape(leaf.shape) for leaf, part in parts])
        return with_visible_obs(self.observation_space, obs, value)


@dataclass(frozen=True)
class ObservationWrapper(Wrapper, ABC):
    """Base class of wrappers that transform each observation by `transform_obs`, to the space `output_space`.

    An action mask and a privileged state stay unchanged.

    Args:
        inner: Wrapped environment.
    """

    @property
    @abstractmethod
    def output_space(self) -> Space:
        """Return the space of transformed observations, without action mask and privileged state."""

    @abstractmethod
    def transform_obs(self, obs: Any) -> Any:
        """Return the transformed observation.

        Args:
            obs: Observation of the inner environment, without action mask and privileged state.
        """

    @property
    def observation_space(self) -> Space:
        return with_visible_space(self.inner.observation_space, self.output_space)

    def reset(self, key: Key, params: Any) -> tuple[WrapperState, Any]:
        inner, obs = self.inner.reset(key, params)
        return WrapperState(inner), self._transform_visible(obs)

    def step(self, key: Key, env_state: WrapperState, action: Any, params: Any) -> tuple[WrapperState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        return WrapperState(inner), replace(timestep, obs=self._transform_visible(timestep.obs))

    def _transform_visible(self, obs: Any) -> Any:
        space = self.inner.observation_space
        return with_visible_obs(space, obs, self.transform_obs(get_visible_obs(space, obs)))


@dataclass(frozen=True)
class FilterObservation(ObservationWrapper):
    """Environment that shows only selected parts of its observations: entries of a vector, or entries of a dict.

    Args:
        inner: Environment whose observations are a vector or a dict.
        keep: Indices of a vector, or names of a dict, of the parts to keep.

    Raises:
        OptionError: If the observations are neither a vector nor a dict, or `keep` has unknown or repeated
            parts.
    """

    keep: Sequence[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", tuple(self.keep))
        space = get_visible_space(self.inner.observation_space)
        if not (isinstance(space, Box) and len(space.shape) == 1) and not isinstance(space, Dict):
            raise OptionError(f"env: FilterObservation needs observations that are a vector or a dict, not {space}")
        there = list(range(space.shape[0])) if isinstance(space, Box) else sorted(space.parts)
        known = bool(self.keep) and all(one in there for one in self.keep) and len(set(self.keep)) == len(self.keep)
        require(known, "keep", list(self.keep), f"must be some of {there}, without repetition")

    @property
    def output_space(self) -> Space:
        space = get_visible_space(self.inner.observation_space)
        if isinstance(space, Dict):
            return Dict({name: space.parts[name] for name in self.keep})
        assert isinstance(space, Box)
        low, high = (tuple(bound[list(self.keep)].tolist()) for bound in space.bounds)
        return replace(space, low=low, high=high, shape=(len(self.keep),))

    def transform_obs(self, obs: Any) -> Any:
        return {name: obs[name] for name in self.keep} if isinstance(obs, Mapping) else obs[jnp.array(self.keep)]


def strip_reward_wrappers(env: Env) -> Env:
    """Return env without its RewardTransform wrappers, which change only the rewards for learning."""
    match env:
        case RewardTransform():
            return strip_reward_wrappers(env.inner)
        case Wrapper():
            return replace(env, inner=strip_reward_wrappers(env.inner))
    return env


def unwrap(env: Env) -> Env:
    """Return the innermost environment, without any wrapper."""
    return unwrap(env.inner) if isinstance(env, Wrapper) else env
