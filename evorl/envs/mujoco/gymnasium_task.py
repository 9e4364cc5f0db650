"""Spaces and pictures of Gymnasium's MuJoCo tasks, which all engines have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from evorl.envs.bodies import render_poses, write_viewer
from evorl.envs.mujoco.tasks import TASKS
from evorl.spaces import Box, to_bound


class GymnasiumTask(ABC):
    """One of Gymnasium's MuJoCo tasks on an engine."""

    name: str
    engine_name: ClassVar[str]  # in the title of the viewer

    @staticmethod
    def names() -> list[str]:
        """Return the ids of all tasks."""
        return list(TASKS)

    @property
    @abstractmethod
    def _gymnasium_env(self) -> Any:
        """Return Gymnasium's environment, for its spaces and its model."""

    @abstractmethod
    def _get_positions(self, states: Sequence[Any]) -> list[np.ndarray]:
        """Return the generalized positions of states, [nq] each."""

    @property
    def observation_space(self) -> Box:
        return Box(-np.inf, np.inf, self._gymnasium_env.observation_space.shape)

    @property
    def action_space(self) -> Box:
        space = self._gymnasium_env.action_space
        return Box(to_bound(space.low), to_bound(space.high), space.shape)

    @property
    def render_fps(self) -> float:
        """Return the environment steps per second of simulated time."""
        return 1 / float(self._gymnasium_env.dt)

    def render_frames(self, states: Sequence[Any]) -> list[np.ndarray]:
        """Render states with MuJoCo.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [height, width, 3].

        Raises:
            OptionError: If MuJoCo finds no OpenGL on this machine.
        """
        return render_poses(self._gymnasium_env.model, self._get_positions(states))

    def draw(self, states: list[Any], folder: Path) -> list[Path]:
        """Write viewer.html, a page that shows the bodies in 3D.

        Args:
            states: States of one episode, in order.
            folder: Folder to write into.

        Returns:
            Paths of the written files.
        """
        title, positions = f"{self.name}, {self.engine_name}", self._get_positions(states)
        return write_viewer(self._gymnasium_env.model, title, positions, self.render_fps, folder)
