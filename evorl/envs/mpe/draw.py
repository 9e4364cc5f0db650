"""Pictures of worlds: agents with a border, landmarks without, goals in a ring, and what is said."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from evorl.envs import render
from evorl.envs.mpe.world import DT, Color, Kinds, MPEState, Scenario, of_each

PIXELS = 400
WORDS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
INK, RING = (0, 0, 0), (220, 0, 0)


@runtime_checkable
class Colored(Protocol):
    """A scenario whose landmarks have colors that change."""

    def colors(self, state: MPEState) -> list[Color]:
        """Of all landmarks."""
        ...


def draw(scenario: Scenario, states: list[MPEState], real: bool, folder: Path) -> list[Path]:
    """A GIF and a PNG of an episode."""
    frames = [picture(scenario, state, real) for state in states[: render.FRAMES]]
    return render.save(frames, DT, folder)


def picture(scenario: Scenario, state: Any, real: bool) -> np.ndarray:
    """One state, [PIXELS, PIXELS, 3]; what lies more than 1.2 from the middle makes all smaller."""
    from PIL import Image, ImageDraw

    at, marks = np.asarray(state.at).T, np.asarray(state.marks).T
    marks_there = marks[(np.abs(marks) < 100).all(-1)]  # others are gone for a step
    reach = max(1.2, *np.abs(at).max(0) + 0.1, *np.abs(marks_there).max(0, initial=0))
    image = Image.new("RGB", (PIXELS, PIXELS), (255, 255, 255))
    pen = ImageDraw.Draw(image)

    def circle(place: np.ndarray, radius: Any, fill: Any, border: Any = None, width: int = 1) -> None:
        x, y = (np.array([1, -1]) * place / reach + 1) * PIXELS / 2
        r = max(radius / reach * PIXELS / 2, 1.5)
        pen.ellipse((x - r, y - r, x + r, y + r), fill, border, width)

    sizes = of_each(scenario.landmarks, "size")
    colors = scenario.colors(state) if isinstance(scenario, Colored) else of_kinds(scenario.landmarks)
    for place, size, color in sorted(zip(marks, sizes, colors, strict=True), key=lambda mark: -mark[1]):
        circle(place, size, ink(color))
    goals = [] if isinstance(state.goal, tuple) else np.unique(np.asarray(state.goal))
    for goal in goals:
        circle(marks[goal], sizes[goal] + 0.03, None, RING, 2)
    for place, size, color in zip(at, of_each(scenario.agents, "size"), of_kinds(scenario.agents), strict=True):
        circle(place, size, ink(color), INK)
    for i, line in enumerate(spoken(scenario.agents, state, real)):
        pen.text((8, 8 + 14 * i), line, INK)
    return np.asarray(image)


def of_kinds(kinds: Kinds) -> list[Color]:
    """The color of each entity."""
    return [color for kind in kinds.values() for color in kind.colors or (kind.color,) * kind.n]


def ink(color: Color) -> tuple[int, ...]:
    """A color from 0 to 255, as bright as mpe2 paints it."""
    return tuple(round(200 * part) for part in color)


def spoken(agents: Kinds, state: MPEState, real: bool) -> Iterator[str]:
    """A line for each agent that speaks."""
    names = [f"{name} {i}" if of.n > 1 else name for name, of in agents.items() if of.words for i in range(of.n)]
    for name, said in zip(names, np.asarray(state.said) if names else (), strict=True):
        word = "_" if not said.any() else str(said.round(2)) if real else WORDS[said.argmax()]
        yield f"{name} says {word}"
