"""Rendering of environment states as frames, and files with the frames of an episode."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from typing_extensions import Protocol, runtime_checkable

from evorl.errors import EnvError, OptionError

Frame = UInt8[np.ndarray, "height width 3"]

MAX_FRAMES = 200  # of an animation
MAX_FPS = 25.0  # of an animation; faster environments skip frames, so that it plays in real time
MIN_HEIGHT = 480  # minimum height of a frame, in pixels


@runtime_checkable
class Renderable(Protocol):
    """Protocol of an environment whose states can be rendered as frames."""

    @property
    def render_fps(self) -> float | None:
        """Return the environment steps per second of an animation, or None if this environment cannot be rendered."""
        ...

    def render_frames(self, states: Sequence[Any]) -> Sequence[np.ndarray]:
        """Render states.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [height, width, 3], all of one size.

        Raises:
            OptionError: If nothing can be rendered on this machine.
        """
        ...


@runtime_checkable
class Drawable(Protocol):
    """Protocol of an environment that writes its own files about an episode, such as a 3-D viewer."""

    def draw(self, states: list[Any], folder: Path) -> list[Path]:
        """Write files about an episode into a folder.

        Args:
            states: States of one episode, in order.
            folder: Folder to write into.

        Returns:
            Paths of the written files.
        """
        ...


@runtime_checkable
class HasActionMeanings(Protocol):
    """Protocol of an environment whose actions have names, such as "nothing", "left" or "fire", or the key to press."""

    @property
    def action_meanings(self) -> tuple[str, ...]:
        """Return the name of each action."""
        ...


def get_fps(env: Any) -> float | None:
    """Return the environment steps per second of an animation, or None if the environment cannot be rendered."""
    return env.render_fps if isinstance(env, Renderable) else None


def render_states(env: Any, states: Sequence[Any]) -> list[np.ndarray]:
    """Render states, and enlarge small frames by an integer factor to at least MIN_HEIGHT pixels of height.

    Args:
        env: A Renderable environment.
        states: States of one episode, in order.

    Returns:
        A frame for each state, uint8 [height, width, 3].

    Raises:
        OptionError: If nothing can be rendered on this machine.
        EnvError: If the frames have another type or shape than Renderable requires.
    """
    frames = [np.asarray(frame) for frame in env.render_frames(states)]
    for frame in frames:
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.shape != frames[0].shape:
            given = f"{frame.dtype} {list(frame.shape)}"
            raise EnvError(f"{type(env).__name__}.render_frames: a frame is {given}, must be uint8 [height, width, 3]")
    if len(frames) != len(states):
        raise EnvError(f"{type(env).__name__}.render_frames: returned {len(frames)} frames for {len(states)} states")
    return [enlarge(frame, -(-MIN_HEIGHT // frame.shape[0])) for frame in frames]


def enlarge(frame: np.ndarray, times: int) -> np.ndarray:
    """Repeat each pixel of a frame along both sides."""
    return frame.repeat(times, 0).repeat(times, 1)


def save_episode(env: Any, states: list[Any], folder: Path) -> list[Path]:
    """Write the pictures of an episode: the environment's own files, and its frames as GIF, PNG and MP4.

    If the frames cannot be rendered on this machine, the reason is printed on stderr.

    Args:
        env: The environment, which may be Renderable, Drawable, both or neither.
        states: The states of the episode, in order.
        folder: The folder to write into.

    Returns:
        The paths of the files.
    """
    files = env.draw(states, folder) if isinstance(env, Drawable) else []
    fps = get_fps(env)
    if fps is None:
        return files
    every = max(1, round(fps / MAX_FPS))
    try:
        frames = render_states(env, states[::every][:MAX_FRAMES])
    except OptionError as error:
        print(f"no pictures: {error}", file=sys.stderr)
        return files
    return [*files, *save_frames(frames, fps / every, folder)]


def save_frames(frames: Sequence[np.ndarray], fps: float, folder: Path) -> list[Path]:
    """Write frames as episode.gif, the middle frame as episode.png, and, if ffmpeg is installed, episode.mp4.

    Args:
        frames: Frames, uint8 [height, width, 3], of one size.
        fps: Frames per second.
        folder: The folder to write into.

    Returns:
        The paths of the files.
    """
    from PIL import Image

    images = [Image.fromarray(frame) for frame in frames]
    gif, png = folder / "episode.gif", folder / "episode.png"
    images[0].save(gif, save_all=True, append_images=images[1:], duration=max(20, round(1000 / fps)), loop=0)
    images[len(images) // 2].save(png)
    ffmpeg = shutil.which("ffmpeg")
    return [gif, png, *(_save_mp4(ffmpeg, frames, fps, folder / "episode.mp4") if ffmpeg else [])]


def _save_mp4(ffmpeg: str, frames: Sequence[np.ndarray], fps: float, path: Path) -> list[Path]:
    """Encode frames with ffmpeg; if it fails, print the last line of its error on stderr."""
    height, width = frames[0].shape[:2]
    taken = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", f"{width}x{height}", "-framerate", f"{fps:g}"]
    made = ["-pix_fmt", "yuv420p", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-movflags", "+faststart", str(path)]
    pixels = b"".join(np.ascontiguousarray(frame).tobytes() for frame in frames)
    try:
        command = [ffmpeg, "-loglevel", "error", "-y", *taken, "-i", "-", *made]
        subprocess.run(command, input=pixels, capture_output=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or str(error).encode()
        print(f"no MP4: {told.decode(errors='replace').strip().splitlines()[-1]}", file=sys.stderr)
        path.unlink(missing_ok=True)
        return []
    return [path]


def render_text(texts: Sequence[str], size: int = 16) -> list[np.ndarray]:
    """Render multi-line texts as frames of one size, dark on white."""
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
