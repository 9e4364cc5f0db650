"""A web page that shows moving bodies in 3-D: one file, which needs neither a network nor installed software."""

import base64
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from jaxtyping import Float, Int

NUM_SIDES = 12  # of the polygons that approximate circles
ANGLES = 2 * np.pi * np.arange(NUM_SIDES) / NUM_SIDES


@dataclass(frozen=True)
class Solid:
    """A body that moves with a link, or is fixed if its link is -1.

    The corners of a face are counterclockwise if seen from outside. Faces are drawn from the farthest to the
    nearest, which is correct only for small or convex bodies.
    """

    link: int
    color: Sequence[float]  # red, green, blue and alpha, from 0 to 1
    points: Float[np.ndarray, "points 3"]  # in the frame of the link
    faces: Int[np.ndarray, "faces 4"]  # triangles repeat the last corner


def build_page(
    title: str,
    solids: Sequence[Solid],
    poses: Float[np.ndarray, "frames links 7"],
    seconds: float,
    ground: float | None,
) -> str:
    """Return the HTML page of an episode.

    A pose is x, y, z and a unit quaternion, w first. `seconds` is the time between frames, `ground` the
    height of the ground, or None.
    """
    corners = np.nan_to_num(np.concatenate([transform_points(solid, poses[0]) for solid in solids]))
    low, high = corners.min(0), corners.max(0)
    extent = max(float(np.linalg.norm(high - low)), 1e-3)
    scene = {
        "solids": [_describe(solid) for solid in solids],
        "poses": base64.b64encode(poses.astype("<f4").tobytes()).decode(),
        "frames": len(poses),
        "links": poses.shape[1],
        "seconds": seconds,
        "center": _round((low + high) / 2),
        "distance": 2 * extent,
        "ground": ground,
        "square": extent / 2,
    }
    template = Template((Path(__file__).parent / "viewer.html").read_text("utf-8"))
    return template.substitute(title=html.escape(title), scene=json.dumps(scene, allow_nan=False))


def _describe(solid: Solid) -> dict[str, Any]:
    points, color = _round(solid.points), _round(solid.color)
    return {"link": solid.link, "color": color, "points": points, "faces": solid.faces.tolist()}


def transform_points(solid: Solid, poses: Float[np.ndarray, "links 7"]) -> Float[np.ndarray, "points 3"]:
    """Return the points of a solid in world coordinates."""
    return solid.points if solid.link < 0 else poses[solid.link, :3] + rotate(solid.points, poses[solid.link, 3:])


def rotate(points: Float[np.ndarray, "points 3"], quaternion: Float[np.ndarray, " 4"]) -> Float[np.ndarray, "points 3"]:
    """Rotate points by a unit quaternion, w first."""
    w, axis = quaternion[0], quaternion[1:]
    across = np.cross(axis, points)
    return points + 2 * (w * across + np.cross(axis, across))


def _round(values: Any) -> Any:
    return np.round(np.asarray(values, float), 4).tolist()


Shape = tuple[Float[np.ndarray, "points 3"], Int[np.ndarray, "faces 4"]]


def build_box(half: Sequence[float]) -> Shape:
    """Return the points and faces of a box with these half lengths."""
    signs = np.array([[x, y, z] for z in (-1, 1) for y in (-1, 1) for x in (-1, 1)])
    faces = [[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]]
    return signs * np.asarray(half, float), np.array(faces)


def revolve(profile: Iterable[tuple[float, float]]) -> Shape:
    """Return the points and faces of a surface of revolution around z.

    The profile lists (radius, height) from the lowest to the highest point.
    """
    rings = np.array(list(profile), float)
    circle = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
    points = np.concatenate(
        [np.column_stack([radius * circle, np.full(NUM_SIDES, height)]) for radius, height in rings]
    )
    i, j = np.divmod(np.arange((len(rings) - 1) * NUM_SIDES), NUM_SIDES)
    after = (j + 1) % NUM_SIDES
    return points, np.stack(
        [i * NUM_SIDES + j, i * NUM_SIDES + after, (i + 1) * NUM_SIDES + after, (i + 1) * NUM_SIDES + j], 1
    )


def build_capsule(radius: float, half: float) -> Shape:
    """Return the points and faces of a cylinder along z of length 2 * half, with half balls at its ends.

    It is a ball if `half` is 0.
    """
    angles = np.linspace(-np.pi / 2, np.pi / 2, NUM_SIDES // 2 + 2)
    return revolve([(radius * np.cos(a), radius * np.sin(a) + np.copysign(half, a)) for a in angles])


def build_cylinder(radius: float, half: float) -> Shape:
    """Return the points and faces of a closed cylinder along z of length 2 * half."""
    return revolve([(0.0, -half), (radius, -half), (radius, half), (0.0, half)])


def build_mesh(points: Float[np.ndarray, "points 3"], triangles: Int[np.ndarray, "faces 3"]) -> Shape:
    """Return the points and faces of a triangle mesh."""
    return np.asarray(points, float), np.column_stack([triangles, triangles[:, 2]])
