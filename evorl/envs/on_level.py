"""Episodes that begin on levels that are given, whatever wrappers are around them."""

from dataclasses import dataclass, replace
from typing import Any

from flax import struct

from evorl.envs.wrappers import LinearReward, RewardTransform, Wrapper, WrapperState
from evorl.types import Env, Key, Level, LevelEnv, Params, TimeStep


@struct.dataclass
class OnLevelParams:
    inner: Params
    level: Level | None = None  # on which an episode begins; a step needs none


@dataclass(frozen=True)
class OnLevel(Wrapper):
    """The inner environment, which has levels, on the one that its params hold."""

    inner: LevelEnv

    def reset(self, key: Key, params: OnLevelParams) -> tuple[WrapperState, Any]:
        inner, obs = self.inner.reset_to_level(key, params.level)
        return WrapperState(inner), obs

    def step(
        self, key: Key, env_state: WrapperState, action: Any, params: OnLevelParams
    ) -> tuple[WrapperState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params.inner)
        return WrapperState(inner), timestep


def find_leveled_env(env: Env, params: Any) -> tuple[Env, Any]:
    """What has levels in env, of its wrappers the outermost, with its own params; without any the innermost."""
    match env:
        case LevelEnv():
            return env, params
        case LinearReward():
            return find_leveled_env(env.inner, params.inner)
        case Wrapper():
            return find_leveled_env(env.inner, params)
    return env, params


def wrap_like(env: Env, other: Env) -> Env:
    """other, in all wrappers of env around what has levels but those of its rewards."""
    match env:
        case LevelEnv():
            return other
        case RewardTransform() | LinearReward():
            return wrap_like(env.inner, other)
        case Wrapper():
            return replace(env, inner=wrap_like(env.inner, other))
    return other


def reset_on_level(env: Env, key: Key, level: Level, params: Any) -> tuple[Any, Any]:
    """The state and the observation with which an episode begins on a level, in env around an OnLevel."""
    return env.reset(key, OnLevelParams(params, level))
