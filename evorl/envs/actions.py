"""Wrappers that change actions: sticky actions, action repeat, and other action bounds."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Bool, PyTree

from evorl import tree
from evorl.envs.wrappers import Wrapper, WrapperState
from evorl.errors import OptionError, require, require_int
from evorl.spaces import Box, ObsWithActionMask, Space, groups, to_shape_structs
from evorl.types import Array, Key, State, TimeStep
from evorl.vector_env import hosts


@struct.dataclass
class StickyActionState:
    inner: State
    last_action: PyTree
    has_last_action: Bool[Array, ""]


@dataclass(frozen=True)
class StickyAction(Wrapper):
    """Environment in which the previous action is repeated with some probability (sticky actions).

    The first action of an episode is always taken as given.

    Args:
        inner: Wrapped environment.
        probability: Probability that a step repeats the previous action; the default is the value for Atari.

    Source: Machado et al. 2018, doi:10.1613/jair.5699, section 5.
    """

    probability: float = 0.25

    def __post_init__(self) -> None:
        space = self.inner.observation_space
        spaces = [space, *(group.space for group in groups(space).values())]
        masked = any(isinstance(one, ObsWithActionMask) for one in spaces)
        require(
            not masked, "wrappers", "StickyAction", "does not support action masks, which may forbid the last action"
        )
        require(0 <= self.probability < 1, "probability", self.probability, "must be at least 0 and below 1")

    def reset(self, key: Key, params: Any) -> tuple[StickyActionState, Any]:
        inner, obs = self.inner.reset(key, params)
        return StickyActionState(inner, tree.zeros_like(to_shape_structs(self.action_space)), jnp.bool_(False)), obs

    def step(
        self, key: Key, env_state: StickyActionState, action: Any, params: Any
    ) -> tuple[StickyActionState, TimeStep]:
        key_stick, key_step = jax.random.split(key)
        sticks = env_state.has_last_action & (jax.random.uniform(key_stick) < self.probability)
        taken = jax.tree.map(
            lambda old, new: jnp.where(sticks, old, new).astype(old.dtype), env_state.last_action, action
        )
        inner, timestep = self.inner.step(key_step, env_state.inner, taken, params)
        return StickyActionState(inner, taken, jnp.bool_(True)), timestep


@dataclass(frozen=True)
class ActionRepeat(Wrapper):
    """Environment that repeats each action for several steps, or until the episode ends, and sums the rewards.

    Episode statistics (`episode_info`) cover all steps of the inner environment: within one repetition, "sum"
    entries are summed, "mean" entries are averaged, and "last" entries are taken from the last step. The mean
    over an episode is therefore only approximate if the episode ends within a repetition.

    Args:
        inner: Wrapped environment.
        count: Number of steps for which an action is repeated.
    """

    count: int = 4

    def __post_init__(self) -> None:
        require_int("count", self.count)

    @property
    def max_episode_steps(self) -> int:
        return -(-self.inner.max_episode_steps // self.count)

    def reset(self, key: Key, params: Any) -> tuple[WrapperState, Any]:
        inner, obs = self.inner.reset(key, params)
        return WrapperState(inner), obs

    def step(self, key: Key, env_state: WrapperState, action: Any, params: Any) -> tuple[WrapperState, TimeStep]:
        keys = jax.random.split(key, self.count)
        first = self.inner.step(keys[0], env_state.inner, action, params)

        def repeat_step(carry: tuple[Any, TimeStep, Array], key: Key) -> tuple[tuple[Any, TimeStep, Array], None]:
            state, so_far, steps = carry
            going = jnp.logical_not(so_far.terminated | so_far.truncated)
            after, new = self.inner.step(key, state, action, hosts.mask_host_params(going, params))
            rewards = (so_far.reward, so_far.task_reward), (new.reward, new.task_reward)
            reward, task = jax.tree.map(jnp.add, *rewards)
            if so_far.member_ends is not None:  # a member that has ended keeps its last observation
                kept = {
                    name: tree.select(out, so_far.obs[name], new.obs[name])
                    for name, out in so_far.member_ends.is_done.items()
                }
                new = replace(new, obs=new.obs | kept)
            info = {name: self._combine_info(name, so_far.info[name], x) for name, x in new.info.items()}
            return tree.select(
                going, (after, replace(new, reward=reward, info=info, task_reward=task), steps + 1), carry
            ), None

        added = {name: jnp.float32(x) for name, x in first[1].info.items() if self._is_added(name)}
        first = first[0], replace(first[1], info=first[1].info | added)
        (inner, timestep, steps), _ = jax.lax.scan(repeat_step, (*first, jnp.int32(1)), keys[1:])
        means = {name: timestep.info[name] / steps for name, how in self.episode_info.items() if how == "mean"}
        return WrapperState(inner), replace(timestep, info=timestep.info | means)

    def _combine_info(self, name: str, so_far: Any, new: Any) -> Any:
        """Combine an info entry of earlier steps with that of the next step.

        Entries that are summarized by "sum" or "mean" are added; of others, the new value is kept.
        """
        return so_far + jnp.float32(new) if self._is_added(name) else new

    def _is_added(self, name: str) -> bool:
        return self.episode_info.get(name) in ("sum", "mean")


@dataclass(frozen=True)
class RescaleAction(Wrapper):
    """Environment with a flat continuous action space from `low` to `high`, rescaled linearly to the inner bounds.

    Actions outside of the bounds are clipped.

    Args:
        inner: Wrapped environment, with a Box as its action space.
        low: Lower bound of each entry of an action.
        high: Upper bound of each entry of an action.

    Raises:
        OptionError: If the actions of the inner environment are not a Box, or `low` is not below `high`.
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        space = self.inner.action_space
        if not isinstance(space, Box):
            raise OptionError(f"env: RescaleAction needs continuous actions, a Box, not {space}")
        require(self.low < self.high, "low", self.low, f"must be below high, {self.high}")

    @property
    def action_space(self) -> Space:
        return Box(self.low, self.high, (self._inner_space.size,))

    @property
    def _inner_space(self) -> Box:
        space = self.inner.action_space
        assert isinstance(space, Box)
        return space

    def reset(self, key: Key, params: Any) -> tuple[WrapperState, Any]:
        inner, obs = self.inner.reset(key, params)
        return WrapperState(inner), obs

    def step(self, key: Key, env_state: WrapperState, action: Any, params: Any) -> tuple[WrapperState, TimeStep]:
        low, high = self._inner_space.bounds
        share = (jnp.clip(action, self.low, self.high) - self.low) / (self.high - self.low)
        own = (low + share.reshape(low.shape) * (high - low)).astype(low.dtype)
        inner, timestep = self.inner.step(key, env_state.inner, own, params)
        return WrapperState(inner), timestep
