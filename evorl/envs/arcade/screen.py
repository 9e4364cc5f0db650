"""Screens of games: small pictures, which serve as observations, in animations and in the terminal."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.spaces import Box

Color = tuple[int, int, int]
Picture = UInt8[Array, "rows columns 3"]

NIGHT, WHITE, GRAY = (6, 24, 24), (241, 241, 241), (90, 100, 100)
RED, ORANGE, YELLOW, GREEN = (230, 41, 55), (255, 161, 0), (253, 249, 0), (0, 190, 90)
CYAN, BLUE, PURPLE = (0, 187, 187), (0, 110, 240), (160, 70, 200)


@runtime_checkable
class HasScreen(Protocol):
    """Protocol of a game that renders its states as pictures."""

    def render(self, env_state: Any) -> Picture:
        """Render a state as a picture.

        Args:
            env_state: State of the game.

        Returns:
            Picture, uint8 [rows, columns, 3].
        """
        ...


def make_pixel_space(height: int, width: int) -> Box:
    """Return the observation space of pictures of this size."""
    return Box(0, 255, (height, width, 3), "uint8")


def create_picture(height: int, width: int, color: Color = NIGHT) -> Picture:
    """Create a picture of one color."""
    return jnp.broadcast_to(jnp.array(color, jnp.uint8), (height, width, 3))


def paint(picture: Picture, where: Any, color: Color) -> Picture:
    """Return the picture with a color at the pixels of a mask, [rows, columns]."""
    return jnp.where(where[..., None], jnp.array(color, jnp.uint8), picture)


def paint_box(picture: Picture, left: Any, top: Any, width: Any, height: Any, color: Color) -> Picture:
    """Return the picture with a filled rectangle; its position and size are in pixels and may be fractions."""
    y, x = np.mgrid[: picture.shape[0], : picture.shape[1]] + 0.5
    return paint(picture, (x >= left) & (x < left + width) & (y >= top) & (y < top + height), color)


def render_screens(env: HasScreen, states: Sequence[Any]) -> list[np.ndarray]:
    """Render states as pictures, uint8 [rows, columns, 3] each."""
    return [*np.asarray(_render_states(env, tree.stack(list(states))))]


@partial(jax.jit, static_argnums=0)
def _render_states(env: HasScreen, states: Any) -> Array:
    return jax.vmap(env.render)(states)
