"""Pictures of episodes: what an environment may offer, and the files that frames become."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Protocol, runtime_checkable

MAX_FRAMES = 200  # in a GIF at most


@runtime_checkable
class Drawable(Protocol):
    """An environment that writes pictures of an episode, given its states in order, and returns their paths."""

    def draw(self, states: list[Any], folder: Path) -> list[Path]:
        """The paths of pictures of states, written into folder."""
        ...


@runtime_checkable
class HasActionMeanings(Protocol):
    """An environment whose actions have names: "nothing", "left", "fire", or the key that they are by keyboard."""

    @property
    def action_meanings(self) -> tuple[str, ...]:
        """The name of each action."""
        ...


def save_frames(frames: Sequence[np.ndarray], seconds: float, folder: Path) -> list[Path]:
    """Writes frames [height, width, 3] uint8, each shown for so many seconds, as a GIF, and the middle one as a PNG."""
    from PIL import Image

    images = [Image.fromarray(frame) for frame in frames]
    gif, png = folder / "episode.gif", folder / "episode.png"
    images[0].save(gif, save_all=True, append_images=images[1:], duration=max(20, round(1000 * seconds)), loop=0)
    images[len(images) // 2].save(png)
    return [gif, png]


def render_text(texts: Sequence[str], size: int = 16) -> list[np.ndarray]:
    """Texts of several lines as frames of one shape, dark on white."""
    from PIL import Image, ImageDraw, ImageFont

    font, blank = ImageFont.load_default(size), ImageDraw.Draw(Image.new("L", (1, 1)))
    corners = [blank.multiline_textbbox((size, size), text, font)[2:] for text in texts]
    shape = round(max(x for x, _ in corners)) + size, round(max(y for _, y in corners)) + size
    frames = []
    for text in texts:
        image = Image.new("RGB", shape, "white")
        ImageDraw.Draw(image).multiline_text((size, size), text, "black", font)
        frames.append(np.asarray(image))
    return frames
