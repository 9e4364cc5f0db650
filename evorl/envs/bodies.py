"""The bodies of a MuJoCo model as solids of the viewer, and MuJoCo without its warnings."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from evorl.envs import viewer
from evorl.envs.viewer import Shape, Solid

PLANE_GEOM = 0  # of mjtGeom
UNPAINTED, BROWN = (0.5, 0.5, 0.5, 1.0), (0.4, 0.33, 0.26, 1.0)  # MuJoCo's default, and what is shown in its place


def build_solids(model: Any) -> tuple[list[Solid], float | None]:
    """All that is seen of a mujoco.MjModel but planes, and the height of the first of these."""
    found, ground = [], None
    for i in range(model.ngeom):
        if model.geom_type[i] == PLANE_GEOM:
            ground = float(model.geom_pos[i][2]) if ground is None else ground
        elif model.geom_rgba[i][3] > 0 and (shape := _build_shape(model, i)) is not None:
            points = model.geom_pos[i] + viewer.rotate(shape[0], np.asarray(model.geom_quat[i]))
            color = tuple(map(float, model.geom_rgba[i]))
            found.append(Solid(int(model.geom_bodyid[i]) - 1, BROWN if color == UNPAINTED else color, points, shape[1]))
    return found, ground


def _build_shape(model: Any, i: int) -> Shape | None:
    """Of one geom, in its own frame; none of a kind that is not drawn."""
    first, second, third = map(float, model.geom_size[i])
    match int(model.geom_type[i]):
        case 2:  # of mjtGeom: a sphere
            return viewer.build_capsule(first, 0.0)
        case 3:  # capsule
            return viewer.build_capsule(first, second)
        case 4:  # ellipsoid
            points, faces = viewer.build_capsule(1.0, 0.0)
            return points * (first, second, third), faces
        case 5:  # cylinder
            return viewer.build_cylinder(first, second)
        case 6:  # box
            return viewer.build_box((first, second, third))
        case 7:  # mesh
            return _build_mesh(model, int(model.geom_dataid[i]))
    return None


def _build_mesh(model: Any, i: int) -> Shape:
    points, faces = model.mesh_vertadr[i], model.mesh_faceadr[i]
    triangles = model.mesh_face[faces : faces + model.mesh_facenum[i]]
    return viewer.build_mesh(model.mesh_vert[points : points + model.mesh_vertnum[i]], triangles)


@contextlib.contextmanager
def suppress_warnings(mujoco: Any) -> Iterator[None]:
    """Without what MuJoCo says of old models, there or into MUJOCO_LOG.TXT."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
