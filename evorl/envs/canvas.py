"""Drawing of states: a canvas in the coordinates of an environment, and pictures of cell grids."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evorl.envs.render import MIN_HEIGHT

Color = tuple[int, int, int]
Point = Any  # (x, y)

WHITE, INK, GRAY, LIGHT = (255, 255, 255), (40, 44, 52), (140, 145, 150), (225, 228, 232)
BLUE, ORANGE, GREEN, RED = (0, 114, 178), (230, 159, 0), (0, 158, 115), (213, 94, 0)  # Okabe and Ito's palette
CELL = 16  # pixels along the side of a cell
FINER = 2  # factor by which a picture is drawn larger and then reduced, for smooth edges


class Canvas:
    """A picture of a rectangle of the plane, MIN_HEIGHT pixels high, with y pointing up.

    Args:
        left: Lowest x, in units of the environment.
        right: Highest x.
        bottom: Lowest y.
        top: Highest y.
        color: Background color.
    """

    def __init__(self, left: float, right: float, bottom: float, top: float, color: Color = WHITE) -> None:
        from PIL import Image, ImageDraw

        self._corner, self._scale = np.array([left, top]), FINER * MIN_HEIGHT / (top - bottom)
        size = round((right - left) * self._scale / FINER) * FINER, FINER * MIN_HEIGHT
        self._image = Image.new("RGB", size, color)
        self._pen = ImageDraw.Draw(self._image)

    def _to_pixels(self, points: Sequence[Point]) -> list[tuple[float, ...]]:
        scaled = (np.asarray(points, float) - self._corner) * (self._scale, -self._scale)
        return [tuple(point) for point in np.nan_to_num(scaled).clip(-1e5, 1e5).tolist()]

    def draw_line(self, points: Sequence[Point], width: float, color: Color = INK) -> None:
        """Draw a line with round ends through points; its width is in units of the environment."""
        pixels = max(round(width * self._scale), 1)
        self._pen.line(self._to_pixels(points), color, pixels, "curve")
        for end in (points[0], points[-1]):
            self.draw_circle(end, width / 2, color)

    def draw_circle(self, center: Point, radius: float, color: Color) -> None:
        """Draw a filled circle; its radius is in units of the environment."""
        ((x, y),) = self._to_pixels([center])
        r = radius * self._scale
        self._pen.ellipse((x - r, y - r, x + r, y + r), color)

    def draw_polygon(self, points: Sequence[Point], color: Color) -> None:
        """Draw a filled polygon with the given corners."""
        self._pen.polygon(self._to_pixels(points), color)

    def draw_box(self, center: Point, width: float, height: float, color: Color) -> None:
        """Draw a filled rectangle around its center; its sides are in units of the environment."""
        x, y = np.asarray(center, float)
        half = width / 2, height / 2
        self.draw_polygon([(x + half[0] * i, y + half[1] * j) for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))], color)

    def to_frame(self) -> np.ndarray:
        """Return the picture, uint8 [MIN_HEIGHT, width, 3]."""
        return np.asarray(self._image.reduce(FINER))


def paint_cells(shape: tuple[int, int], cells: Mapping[Color, Any]) -> np.ndarray:
    """Paint a grid of cells with borders.

    Args:
        shape: Number of rows and columns of the grid.
        cells: For each color, the (row, column) of its cells, [2] or [n, 2]; later colors cover earlier ones.

    Returns:
        The picture, uint8 [rows * CELL, columns * CELL, 3].
    """
    picture = np.full((*shape, 3), LIGHT, np.uint8)
    for color, places in cells.items():
        rows, columns = np.asarray(places, int).reshape(-1, 2).clip(0, np.array(shape) - 1).T
        picture[rows, columns] = color
    picture = picture.repeat(CELL, 0).repeat(CELL, 1)
    picture[::CELL] = picture[:, ::CELL] = WHITE
    return picture
