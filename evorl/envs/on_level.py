"""Episodes that start on given levels, in any wrappers around the environment that has the levels."""

from dataclasses import dataclass, replace
from typing import Any

from flax import struct

from evorl.envs.wrappers import LinearReward, RewardTransform, Wrapper, WrapperState
from evorl.types import Env, Key, Level, LevelEnv, Params, TimeStep


@struct.dataclass
class OnLevelParams:
    inner: Params
    level: Level | None = None  # level on which an episode starts; None for a step


@dataclass(frozen=True)
class OnLevel(Wrapper):
    """Environment whose episodes start on the level in its params."""

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
    """Return the outermost environment that has levels, and its params, from within the wrappers of env.

    If no environment has levels, return the innermost one.
    """
    match env:
        case LevelEnv():
            return env, params
        case LinearReward():
            return find_leveled_env(env.inner, params.inner)
        case Wrapper():
            return find_leveled_env(env.inner, params)
    return env, params


def wrap_like(env: Env, other: Env) -> Env:
    """Wrap `other` like the environment with levels inside env, but without reward wrappers."""
    match env:
        case LevelEnv():
            return other
        case RewardTransform() | LinearReward():
            return wrap_like(env.inner, other)
        case Wrapper():
            return replace(env, inner=wrap_like(env.inner, other))
    return other


def reset_on_level(env: Env, key: Key, level: Level, params: Any) -> tuple[Any, Any]:
    """Start an episode on a level, in an env that contains an OnLevel; return the state and the first observation."""
    return env.reset(key, OnLevelParams(params, level))
