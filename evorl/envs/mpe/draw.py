"""Frames of particle worlds: agents with a border, landmarks without, goals in a ring, and messages as text."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from typing_extensions import Protocol, runtime_checkable

from evorl.envs.mpe.world import Color, EntityGroups, MPEState, Scenario, get_entity_values

PICTURE_SIZE = 480
WORD_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
INK, RING = (0, 0, 0), (220, 0, 0)


@runtime_checkable
class HasLandmarkColors(Protocol):
    """A scenario in which the colors of landmarks depend on the state."""

    def get_landmark_colors(self, state: MPEState) -> list[Color]:
        """Return the color of each landmark.

        Args:
            state: State to render.
        """
        ...


def render_world(scenario: Scenario, state: Any, real: bool) -> np.ndarray:
    """Render a state, uint8 [PICTURE_SIZE, PICTURE_SIZE, 3]; zoom out if an entity is far from the center."""
    from PIL import Image, ImageDraw

    at, marks = np.asarray(state.agent_positions).T, np.asarray(state.landmark_positions).T
    marks_there = marks[(np.abs(marks) < 100).all(-1)]  # others have been picked up
    reach = max(1.2, *np.abs(np.concatenate([at, marks_there])).max(0) + 0.2)
    image = Image.new("RGB", (PICTURE_SIZE, PICTURE_SIZE), (255, 255, 255))
    pen = ImageDraw.Draw(image)

    def draw_circle(place: np.ndarray, radius: Any, fill: Any, border: Any = None, width: int = 1) -> None:
        x, y = (np.array([1, -1]) * place / reach + 1) * PICTURE_SIZE / 2
        r = max(radius / reach * PICTURE_SIZE / 2, 1.5)
        pen.ellipse((x - r, y - r, x + r, y + r), fill, border, width)

    sizes = get_entity_values(scenario.landmarks, "size")
    colors = (
        scenario.get_landmark_colors(state)
        if isinstance(scenario, HasLandmarkColors)
        else get_entity_colors(scenario.landmarks)
    )
    for place, size, color in sorted(zip(marks, sizes, colors, strict=True), key=lambda mark: -mark[1]):
        draw_circle(place, size, to_rgb(color))
    goals = [] if state.goal is None else np.unique(np.asarray(state.goal))
    for goal in goals:
        draw_circle(marks[goal], sizes[goal] + 0.03, None, RING, 2)
    for place, size, color in zip(
        at, get_entity_values(scenario.agents, "size"), get_entity_colors(scenario.agents), strict=True
    ):
        draw_circle(place, size, to_rgb(color), INK)
    for i, line in enumerate(format_messages(scenario.agents, state, real)):
        pen.text((8, 8 + 14 * i), line, INK)
    return np.asarray(image)


def get_entity_colors(kinds: EntityGroups) -> list[Color]:
    """Return the color of each entity."""
    return [color for kind in kinds.values() for color in kind.colors or (kind.color,) * kind.n]


def to_rgb(color: Color) -> tuple[int, ...]:
    """Convert a color to integers from 0 to 255, as bright as in mpe2."""
    return tuple(round(200 * part) for part in color)


def format_messages(agents: EntityGroups, state: MPEState, real: bool) -> Iterator[str]:
    """Yield a line of text for each agent that can speak."""
    names = [f"{name} {i}" if of.n > 1 else name for name, of in agents.items() if of.num_words for i in range(of.n)]
    for name, said in zip(names, np.asarray(state.messages) if names else (), strict=True):
        word = "_" if not said.any() else str(said.round(2)) if real else WORD_LETTERS[said.argmax()]
        yield f"{name} says {word}"
