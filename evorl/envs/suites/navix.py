"""Adapter for navix (Pignatelli et al. 2024, arXiv:2407.19396)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import mesh, tree
from evorl.envs.suites.common import cast_obs, import_extra, set_default_limit
from evorl.errors import unknown_name_error
from evorl.spaces import Box, Dict, Discrete, Space
from evorl.types import Key, TimeStep

MAX_ENTITY_ID = 10  # the largest value in navix's EntityIds
NUM_COLORS = 6  # colors that navix draws


@dataclass(frozen=True)
class Navix:
    """A navix environment (MiniGrid in JAX) by its name, such as Navix("Navix-Empty-8x8-v0").

    Observations are those of the library, uint8 grids. If the environment has a mission (GoToDoor), they are
    {"grid", "mission"}, and the mission is the color of the door.

    Args:
        name: One of `names()`.
        max_episode_steps: Steps after which an episode is truncated; 0 takes that of `navix.make`, 100.

    Raises:
        OptionError: If a value is not allowed or navix is not installed.

    Source: Pignatelli et al. 2024, arXiv:2407.19396.
    """

    name: str
    max_episode_steps: int = 0

    default_params = None
    fresh_reset = True
    render_fps = 10.0

    def __post_init__(self) -> None:
        set_default_limit(self, lambda: self.env.max_steps)

    @staticmethod
    def names() -> list[str]:
        """Return the names of all environments."""
        return list(import_extra("navix", "navix").registry())

    @cached_property
    def env(self) -> Any:
        """Return the wrapped environment."""
        navix = import_extra("navix", "navix")
        if self.name not in navix.registry():
            raise unknown_name_error("environment of navix", self.name, navix.registry(), "--list env=navix")
        with mesh.eager_mode():
            env = navix.make(self.name)
            return env.replace(max_steps=self.max_episode_steps or env.max_steps)

    @cached_property
    def _has_mission(self) -> bool:
        return jax.eval_shape(self.env.reset, jax.random.key(0)).state.mission is not None

    @cached_property
    def observation_space(self) -> Space:
        shape = tuple(self.env.observation_space.shape)
        grid = Box(0, MAX_ENTITY_ID, shape, "uint8")  # navix declares only 9 kinds of entities
        return Dict({"grid": grid, "mission": Discrete(NUM_COLORS)}) if self._has_mission else grid

    @cached_property
    def action_space(self) -> Space:
        with mesh.eager_mode():
            return Discrete(int(self.env.action_space.maximum) + 1)

    def reset(self, key: Key, params: Any) -> tuple[Any, Any]:
        del params
        state = tree.drop_weak_types(self.env.reset(key))
        return state, self._build_obs(state)

    def step(self, key: Key, env_state: Any, action: Any, params: Any) -> tuple[Any, TimeStep]:
        del key, params
        state = tree.drop_weak_types(self.env._step(env_state, action))  # `step` would reset automatically
        obs, reward = self._build_obs(state), jnp.asarray(state.reward, jnp.float32)
        return state, TimeStep(obs, reward, state.is_termination(), state.is_truncation())

    def _build_obs(self, state: Any) -> Any:
        seen = state.observation
        if self._has_mission:
            seen = {"grid": seen, "mission": state.state.mission.colour}
        return cast_obs(seen, self.observation_space)

    def render_frames(self, states: Sequence[Any]) -> list[np.ndarray]:
        """Render states with the library's own renderer.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [height, width, 3].
        """
        rgb = import_extra("navix.observations", "navix").rgb
        return [np.asarray(rgb(state.state)).astype(np.uint8) for state in states]
