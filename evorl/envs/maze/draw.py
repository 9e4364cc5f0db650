"""Pictures of levels."""

from typing import Any

import numpy as np

from evorl import tree
from evorl.envs.maze.levels import ABSENT, GREEN, HEADINGS, RED, Level

FLOOR, WALL, LINE, AGENT = (245, 245, 240), (85, 85, 90), (215, 215, 210), (30, 90, 200)
TILE_COLORS = {GREEN: (60, 170, 80), RED: (205, 65, 60)}


def render_level(level: Level, position: Any = None, direction: Any = None, tile: int = 16) -> np.ndarray:
    """Render a level with its border and the agent.

    Args:
        level: Level.
        position: Position of the agent, (x, y); None for its start.
        direction: Direction of the agent, from 0 to 3; None for its initial direction.
        tile: Side of a cell, in pixels.

    Returns:
        Picture, uint8 [(height + 2) * tile, (width + 2) * tile, 3].
    """
    from PIL import Image, ImageDraw

    height, width = level.height + 2, level.width + 2
    image = Image.new("RGB", (width * tile, height * tile), WALL)
    pen = ImageDraw.Draw(image)
    grid = np.asarray(level.grid)

    def fill_cell(cell: Any, color: tuple[int, int, int]) -> None:
        x, y = (int(i) + 1 for i in np.asarray(cell))
        pen.rectangle((x * tile, y * tile, (x + 1) * tile - 1, (y + 1) * tile - 1), fill=color, outline=LINE)

    for y, x in np.argwhere(~grid):
        fill_cell((x, y), FLOOR)
    color = int(level.color)
    tiles = ((level.clue, color), (level.distractor, GREEN + RED - color), (level.goal, color))
    for cell, of_tile in tiles:
        if int(np.asarray(cell)[0]) != ABSENT:
            fill_cell(cell, TILE_COLORS[of_tile])
    place = np.asarray(level.agent if position is None else position)
    ahead = HEADINGS[int(level.direction if direction is None else direction)]
    aside = np.array((-ahead[1], ahead[0]))
    middle = (place + 1.5) * tile
    corners = (
        middle + 0.4 * tile * ahead,
        middle - 0.3 * tile * (ahead - aside),
        middle - 0.3 * tile * (ahead + aside),
    )
    pen.polygon([tuple(map(float, corner)) for corner in corners], fill=AGENT)
    return np.asarray(image)


def render_level_grid(levels: Level, columns: int = 8, tile: int = 8) -> np.ndarray:
    """Render several levels in a grid of pictures.

    Args:
        levels: Levels, leaves [n, ...].
        columns: Number of levels in a row.
        tile: Side of a cell, in pixels.

    Returns:
        Picture, uint8 [rows, columns, 3].
    """
    pictures = [render_level(tree.index(levels, i), tile=tile) for i in range(tree.leading_size(levels))]
    nothing = np.full_like(pictures[0], 255)
    pictures += [nothing] * (-len(pictures) % columns)
    framed = [np.pad(x, ((2, 2), (2, 2), (0, 0)), constant_values=255) for x in pictures]
    rows = [np.concatenate(framed[i : i + columns], axis=1) for i in range(0, len(framed), columns)]
    return np.concatenate(rows)
