"""Pictures of a MuJoCo model: rendered frames, and solids for the 3-D viewer."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from evorl.envs import viewer
from evorl.envs.render import MIN_HEIGHT
from evorl.envs.viewer import Shape, Solid
from evorl.errors import OptionError

WIDTH = 640  # width of a frame, in pixels
SLIDING_JOINTS = (0, 2)  # values of mjtJoint: free and slide
DISTANCE = 2.6  # of the camera, in radii of a sphere around the bodies, so that it fills the frame vertically
PLANE_GEOM = 0  # value of mjtGeom
UNPAINTED, BROWN = (0.5, 0.5, 0.5, 1.0), (0.4, 0.33, 0.26, 1.0)  # MuJoCo's default color, and the color shown instead


def build_solids(model: Any) -> tuple[list[Solid], float | None]:
    """Return the solids of a mujoco.MjModel, without planes, and the height of its first plane, or None."""
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
    """Return the shape of a geom in its own frame, or None for a type that is not drawn."""
    first, second, third = map(float, model.geom_size[i])
    match int(model.geom_type[i]):
        case 2:  # values of mjtGeom: sphere
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


def render_poses(
    model: Any, positions: Sequence[np.ndarray], mocaps: Sequence[tuple[np.ndarray, np.ndarray]] = ()
) -> list[np.ndarray]:
    """Render a mujoco.MjModel at generalized positions, with a camera that keeps the moving bodies in view.

    Args:
        model: The mujoco.MjModel.
        positions: Generalized positions, [nq] each.
        mocaps: Positions and orientations of the mocap bodies for each of them, [nmocap, 3] and [nmocap, 4];
            by default, those of the model.

    Returns:
        Frames, uint8 [480, 640, 3].

    Raises:
        OptionError: If MuJoCo finds no OpenGL on this machine.
    """
    import mujoco as imported

    mujoco: Any = imported
    if problem := find_rendering_problem():
        raise OptionError(problem)
    data, camera = mujoco.MjData(model), _create_camera(mujoco, model)
    model.vis.global_.offwidth, model.vis.global_.offheight = WIDTH, MIN_HEIGHT
    frames = []
    with mujoco.Renderer(model, height=MIN_HEIGHT, width=WIDTH) as renderer:
        for i, position in enumerate(positions):
            data.qpos[:] = position
            if mocaps:
                data.mocap_pos[:], data.mocap_quat[:] = mocaps[i]
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            frames.append(renderer.render().copy())
    return frames


def write_viewer(model: Any, title: str, positions: Iterable[np.ndarray], fps: float, folder: Path) -> list[Path]:
    """Write viewer.html, a page that shows a mujoco.MjModel at generalized positions in 3D.

    Args:
        model: The mujoco.MjModel.
        title: Title of the page.
        positions: Generalized positions, [nq] each.
        fps: Positions per second of simulated time.
        folder: Folder to write into.

    Returns:
        Paths of the written files.
    """
    import mujoco as imported

    mujoco: Any = imported
    data, poses = mujoco.MjData(model), []
    for position in positions:
        data.qpos[:] = position
        mujoco.mj_kinematics(model, data)
        poses.append(np.concatenate([data.xpos, data.xquat], 1)[1:])
    shown, (bodies, ground) = folder / "viewer.html", build_solids(model)
    shown.write_text(viewer.build_page(title, bodies, np.array(poses), 1 / fps, ground), "utf-8")
    return [shown]


@cache
def find_rendering_problem() -> str:
    """Return why MuJoCo cannot render on this machine; empty if it can.

    It is tried only once per process, since a second attempt without OpenGL aborts the process.
    """
    import mujoco as imported

    mujoco: Any = imported
    try:
        with mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), height=8, width=8):
            return ""
    except Exception as error:  # each OpenGL backend of MuJoCo raises its own
        why = str(error).partition(",")[0].partition("\n")[0]
        return f"MuJoCo cannot render on this machine ({why}); try MUJOCO_GL=egl or osmesa"


def _create_camera(mujoco: Any, model: Any) -> Any:
    """Create a camera that keeps the first body in view.

    If the first joint of the body is free or a slide joint without limits, the camera tracks the body. If it
    is a slide joint with limits, the camera is fixed, so far away that the whole range is in view. Otherwise,
    it is MuJoCo's default camera.
    """
    camera, first = mujoco.MjvCamera(), model.body_jntadr[1]
    mujoco.mjv_defaultFreeCamera(model, camera)
    if first < 0 or model.jnt_type[first] not in SLIDING_JOINTS:
        return camera
    data, moving = mujoco.MjData(model), model.geom_bodyid > 0
    mujoco.mj_forward(model, data)
    centers, radii = data.geom_xpos[moving], model.geom_rbound[moving, None]
    low, high = (centers - radii).min(0), (centers + radii).max(0)
    camera.lookat[:] = (low + high) / 2
    way = float(np.abs(model.jnt_range[first]).max()) if model.jnt_limited[first] else 0.0
    camera.distance = DISTANCE * (np.linalg.norm(high - low) / 2 + way)
    if not model.jnt_limited[first]:
        camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, 1
    return camera


@contextlib.contextmanager
def suppress_warnings(mujoco: Any) -> Iterator[None]:
    """Suppress MuJoCo's warnings, such as those about old models, which it prints or writes into MUJOCO_LOG.TXT."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
