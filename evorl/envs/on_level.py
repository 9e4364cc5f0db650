"""Episodes that begin on levels that are given, whatever wrappers are around them."""

from dataclasses import dataclass, replace
from typing import Any

from flax import struct

from evorl.envs.wrappers import Rewards, Scalarized, Wrapper, WrapperState
from evorl.types import Env, Key, Level, Leveled, TimeStep


@struct.dataclass
class OnLevelParams:
    inner: Any
    level: Any = ()  # on which an episode begins; a step needs none


@dataclass(frozen=True)
class OnLevel(Wrapper):
    """The inner environment, which has levels, on the one that its params hold."""

    inner: Leveled

    def reset(self, key: Key, params: OnLevelParams) -> tuple[WrapperState, Any]:
        inner, obs = self.inner.reset_to(key, params.level)
        return WrapperState(inner), obs

    def step(
        self, key: Key, env_state: WrapperState, action: Any, params: OnLevelParams
    ) -> tuple[WrapperState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params.inner)
        return WrapperState(inner), timestep


def with_levels(env: Env, params: Any) -> tuple[Env, Any]:
    """What has levels in env, of its wrappers the outermost, with its own params; without any the innermost."""
    match env:
        case Leveled():
            return env, params
        case Scalarized():
            return with_levels(env.inner, params.inner)
        case Wrapper():
            return with_levels(env.inner, params)
    return env, params


def seen_alike(env: Env, other: Env) -> Env:
    """other, in all wrappers of env around what has levels but those of its rewards."""
    match env:
        case Leveled():
            return other
        case Rewards() | Scalarized():
            return seen_alike(env.inner, other)
        case Wrapper():
            return replace(env, inner=seen_alike(env.inner, other))
    return other


def start(env: Env, key: Key, level: Level, params: Any) -> tuple[Any, Any]:
    """The state and the observation with which an episode begins on a level, in env around an OnLevel."""
    return env.reset(key, OnLevelParams(params, level))
