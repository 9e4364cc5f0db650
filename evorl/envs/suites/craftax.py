"""Adapter for Craftax and Craftax-Classic (Matthews et al. 2024, arXiv:2402.16801)."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from evorl import mesh
from evorl.envs.suites.common import SuiteState, cast_obs, import_extra, set_default_limit
from evorl.errors import unknown_name_error
from evorl.spaces import Box, Discrete, Space
from evorl.types import Key, TimeStep

NAMES = ("Craftax-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Classic-Pixels-v1")


@dataclass(frozen=True)
class Craftax:
    """A Craftax or Craftax-Classic game by its name, such as Craftax("Craftax-Classic-Symbolic-v1").

    Args:
        name: One of `names()`.
        max_episode_steps: Steps after which an episode is truncated; 0 takes the game's own limit.

    Raises:
        OptionError: If a value is not allowed or Craftax is not installed.

    Source: Matthews et al. 2024, arXiv:2402.16801.
    """

    name: str
    max_episode_steps: int = 0

    fresh_reset = True
    render_fps = 10.0

    def __post_init__(self) -> None:
        set_default_limit(self, lambda: self.env.default_params.max_timesteps)

    @staticmethod
    def names() -> list[str]:
        """Return the names of all games."""
        return list(NAMES)

    @cached_property
    def env(self) -> Any:
        """Return the wrapped game, without automatic resets."""
        if self.name not in NAMES:
            raise unknown_name_error("game of Craftax", self.name, NAMES)
        made = import_extra("craftax.craftax_env", "craftax")
        with mesh.eager_mode():
            return made.make_craftax_env_from_name(self.name, auto_reset=False)

    @property
    def default_params(self) -> Any:
        """Return Craftax's params, with a time limit that is never reached, because the adapter truncates."""
        return dataclasses.replace(self.env.default_params, max_timesteps=self.max_episode_steps + 1)

    @property
    def observation_space(self) -> Space:
        space = self.env.observation_space(self.env.default_params)
        return Box(float(np.min(space.low)), float(np.max(space.high)), tuple(space.shape))

    @property
    def action_space(self) -> Space:
        return Discrete(int(self.env.num_actions))

    def reset(self, key: Key, params: Any) -> tuple[SuiteState, Any]:
        obs, inner = self.env.reset_env(key, params)
        return SuiteState.init(inner), cast_obs(obs, self.observation_space)

    def step(self, key: Key, env_state: SuiteState, action: Any, params: Any) -> tuple[SuiteState, TimeStep]:
        obs, inner, reward, done, _ = self.env.step_env(key, env_state.inner, action, params)
        state = env_state.advance(inner)
        return state, state.to_timestep(cast_obs(obs, self.observation_space), reward, done, self.max_episode_steps)

    def render_frames(self, states: Sequence[SuiteState]) -> list[np.ndarray]:
        """Render states with the game's own renderer.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [height, width, 3].
        """
        classic = "Classic" in self.name
        renderer = import_extra(f"craftax.craftax{'_classic' * classic}.renderer", "craftax")
        size = 16
        paint = jax.jit(
            renderer.make_craftax_pixel_renderer(size)
            if classic
            else lambda state: renderer.render_craftax_pixels(state, size)
        )
        return [np.asarray(paint(state.inner)).astype(np.uint8) for state in states]
