"""Behavior descriptors of Brax environments, for quality-diversity algorithms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from evorl.envs.suites.brax import Brax, BraxState
from evorl.envs.wrappers import Wrapper, WrapperState, unwrap
from evorl.errors import OptionError, require
from evorl.types import Env, Key, State, TimeStep

FOOT_NAME = "foot"  # part of the names of feet
ANT_FEET = (2, 4, 6, 8)  # links at the ends of its legs, which have no names


def find_brax(env: Env, wrapper: str) -> Brax:
    """Return the Brax environment inside wrappers; raise OptionError if the innermost environment is another one."""
    found = unwrap(env)
    if not isinstance(found, Brax):
        raise OptionError(f"env: {wrapper} needs a Brax environment, not {type(found).__name__}")
    return found


def find_pipeline_state(state: State) -> Any:
    """Return Brax's own pipeline state, inside the states of wrappers."""
    return state.pipeline_state if isinstance(state, BraxState) else find_pipeline_state(state.inner)


@dataclass(frozen=True)
class FinalPosition(Wrapper):
    """Brax environment that reports the position of the root body at the end of an episode.

    It is the entry "position" of the episode info: x and y in meters, shape [2].

    Args:
        inner: Brax environment, with or without other wrappers.

    Raises:
        OptionError: If the innermost environment is not a Brax environment.
    """

    def __post_init__(self) -> None:
        find_brax(self.inner, "FinalPosition")

    @property
    def episode_info(self) -> Mapping[str, str]:
        return {**super().episode_info, "position": "last"}

    def reset(self, key: Key, params: Any) -> tuple[WrapperState, Any]:
        inner, obs = self.inner.reset(key, params)
        return WrapperState(inner), obs

    def step(self, key: Key, env_state: WrapperState, action: Any, params: Any) -> tuple[WrapperState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        position = find_pipeline_state(inner).x.pos[0, :2]
        return WrapperState(inner), replace(timestep, info={**timestep.info, "position": position})


@dataclass(frozen=True)
class FeetContact(Wrapper):
    """Brax environment that reports the fraction of steps in which each foot touches the ground.

    It is the entry "feet_contact" of the episode info, shape [feet], a mean over the episode from 0 to 1.

    Args:
        inner: Brax environment with the option debug=True, with or without other wrappers.
        feet: Indices of the links that are feet; empty for the links with "foot" in their names, or for the
            ends of the legs of the ant.

    Raises:
        OptionError: If the innermost environment is not a Brax environment, lacks the option debug=True, or
            has the backend mjx.

    Source: Cully et al. 2015, doi:10.1038/nature14422.
    """

    feet: Sequence[int] = field(default=())

    def __post_init__(self) -> None:
        env = find_brax(self.inner, "FeetContact")
        object.__setattr__(self, "feet", tuple(self.feet))
        why = "FeetContact needs contacts, which Brax returns only with +options.debug=true"
        require(env.options.get("debug") is True, "options.debug", env.options.get("debug"), why)
        require(env.backend != "mjx", "backend", env.backend, "is not supported by FeetContact; use another backend")

    @property
    def episode_info(self) -> Mapping[str, str]:
        return {**super().episode_info, "feet_contact": "mean"}

    @cached_property
    def foot_links(self) -> tuple[int, ...]:
        """Return the indices of the links that are feet.

        Raises:
            OptionError: If the model has no links with known names of feet, or an index in `feet` is out of
                range.
        """
        env = find_brax(self.inner, "FeetContact")
        names = env.env.sys.link_names
        known = ANT_FEET if env.name == "ant" else tuple(i for i, name in enumerate(names) if FOOT_NAME in name)
        found = tuple(self.feet) or known
        right = bool(found) and all(0 <= link < len(names) for link in found)
        require(right, "feet", list(found), f"must be indices of the {len(names)} links of {env.name}, starting at 0")
        return found

    def reset(self, key: Key, params: Any) -> tuple[WrapperState, Any]:
        inner, obs = self.inner.reset(key, params)
        return WrapperState(inner), obs

    def step(self, key: Key, env_state: WrapperState, action: Any, params: Any) -> tuple[WrapperState, TimeStep]:
        inner, timestep = self.inner.step(key, env_state.inner, action, params)
        down = jnp.stack(
            [self.has_ground_contact(find_pipeline_state(inner).contact, link) for link in self.foot_links]
        )
        return WrapperState(inner), replace(timestep, info={**timestep.info, "feet_contact": down.astype(jnp.float32)})

    def has_ground_contact(self, contact: Any, link: int) -> Bool[Array, ""]:
        """Return whether a link touches the ground, bool [].

        Args:
            contact: Brax's contacts; a negative link index stands for the ground.
            link: Index of the link.
        """
        first, second = contact.link_idx
        ground = ((first == link) & (second < 0)) | ((second == link) & (first < 0))
        return (ground & (contact.dist <= 0)).any()
