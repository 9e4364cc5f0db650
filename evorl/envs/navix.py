"""navix (Pignatelli et al. 2024, arXiv:2407.19396)."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from evorl import mesh, tree
from evorl.envs import render
from evorl.envs.suite import declared, imported, take_limit
from evorl.errors import unknown
from evorl.spaces import Box, Discrete, Space
from evorl.types import Key, TimeStep

PLAYER = 10  # the largest of navix's EntityIds


@dataclass(frozen=True)
class Navix:
    """An environment of navix by its name, such as Navix("Navix-Empty-8x8-v0").

    max_episode_steps 0 takes its own limit.
    """

    name: str
    max_episode_steps: int = 0

    default_params = ()
    fresh_reset = True

    def __post_init__(self) -> None:
        take_limit(self, lambda: self.env.max_steps)

    @staticmethod
    def names() -> list[str]:
        """The names of all."""
        return list(imported("navix", "navix").registry())

    @cached_property
    def env(self) -> Any:
        """The wrapped environment."""
        navix = imported("navix", "navix")
        if self.name not in navix.registry():
            raise unknown("environment of navix", self.name, navix.registry(), "--list env=navix")
        with mesh.computed_at_once():
            env = navix.make(self.name)
            return env.replace(max_steps=self.max_episode_steps or env.max_steps)

    @cached_property
    def observation_space(self) -> Space:
        shape = tuple(self.env.observation_space.shape)
        return Box(0, PLAYER, shape, "uint8")  # navix declares 9 kinds of things, and has more

    @cached_property
    def action_space(self) -> Space:
        with mesh.computed_at_once():
            return Discrete(int(self.env.action_space.maximum) + 1)

    def reset(self, key: Key, params: Any) -> tuple[Any, Any]:
        del params
        state = tree.strong(self.env.reset(key))
        return state, declared(state.observation, self.observation_space)

    def step(self, key: Key, env_state: Any, action: Any, params: Any) -> tuple[Any, TimeStep]:
        del key, params
        state = tree.strong(self.env._step(env_state, action))  # step resets by itself
        obs, reward = declared(state.observation, self.observation_space), jnp.asarray(state.reward, jnp.float32)
        return state, TimeStep(obs, reward, state.is_termination(), state.is_truncation())

    def draw(self, states: list[Any], folder: Path) -> list[Path]:
        """A GIF and a PNG by the library's own renderer."""
        rgb = imported("navix.observations", "navix").rgb
        frames = [np.asarray(rgb(state.state)).astype(np.uint8) for state in states[: render.FRAMES]]
        return render.save(frames, 0.1, folder)
