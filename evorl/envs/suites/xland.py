"""Adapter for XLand-MiniGrid (Nikulin et al. 2023, arXiv:2312.12044)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from evorl import mesh, tree
from evorl.envs.suites.common import cast_obs, import_extra, set_default_limit
from evorl.errors import require, unknown_name_error
from evorl.spaces import Box, Discrete, Space
from evorl.types import Key, TimeStep

NEEDS_RULESETS = "XLand-"  # prefix of environments that the library creates without a goal


@dataclass(frozen=True)
class XLand:
    """An XLand-MiniGrid environment by its name, such as XLand("MiniGrid-DoorKey-8x8").

    Observations are the tiles and colors in view, uint8 [view, view, 2]. Environments named XLand-... are
    refused: without rulesets, which would have to be downloaded, they have no objects and no goal.

    Args:
        name: One of `names()`.
        max_episode_steps: Steps after which an episode is truncated; 0 takes the environment's own limit.

    Raises:
        OptionError: If a value is not allowed or XLand-MiniGrid is not installed.

    Source: Nikulin et al. 2023, arXiv:2312.12044.
    """

    name: str
    max_episode_steps: int = 0

    default_params = None
    fresh_reset = True
    render_fps = 10.0

    def __post_init__(self) -> None:
        set_default_limit(self, lambda: self._env_and_params[1].max_steps)

    @staticmethod
    def names() -> list[str]:
        """Return the names of all environments that have a task of their own."""
        every = import_extra("xminigrid", "xland").registered_environments()
        return [name for name in every if not name.startswith(NEEDS_RULESETS)]

    @cached_property
    def _env_and_params(self) -> tuple[Any, Any]:
        xminigrid, names = import_extra("xminigrid", "xland"), self.names()
        needed = "must be a MiniGrid environment: this one has no goal without rulesets, which evorl does not download"
        require(not self.name.startswith(NEEDS_RULESETS), "env.name", self.name, needed)
        if self.name not in names:
            raise unknown_name_error("environment of XLand-MiniGrid", self.name, names, "--list env=xland")
        with mesh.eager_mode():
            env, params = xminigrid.make(self.name)
            return env, params.replace(max_steps=self.max_episode_steps or params.max_steps)

    @property
    def env(self) -> Any:
        """Return the wrapped environment."""
        return self._env_and_params[0]

    @property
    def observation_space(self) -> Space:
        constants = import_extra("xminigrid.core.constants", "xland")
        most = max(constants.NUM_TILES, constants.NUM_COLORS) - 1
        return Box(0, int(most), tuple(self.env.observation_shape(self._env_and_params[1])), "uint8")

    @property
    def action_space(self) -> Space:
        return Discrete(int(self.env.num_actions(self._env_and_params[1])))

    def reset(self, key: Key, params: Any) -> tuple[Any, Any]:
        del params
        state = tree.drop_weak_types(self.env.reset(self._env_and_params[1], key))
        return state, cast_obs(state.observation, self.observation_space)

    def step(self, key: Key, env_state: Any, action: Any, params: Any) -> tuple[Any, TimeStep]:
        del key, params
        state = tree.drop_weak_types(self.env.step(self._env_and_params[1], env_state, action))
        obs, over = cast_obs(state.observation, self.observation_space), state.discount == 0
        return state, TimeStep(obs, state.reward.astype(jnp.float32), over, state.last() & ~over)

    def render_frames(self, states: Sequence[Any]) -> list[np.ndarray]:
        """Render states with the library's own renderer.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [height, width, 3].
        """
        return [np.asarray(self.env.render(self._env_and_params[1], state)) for state in states]
