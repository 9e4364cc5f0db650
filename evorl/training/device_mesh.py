"""Choice of the device mesh of a training: how many devices work on its seeds, members and environments."""

import math
from collections.abc import Iterator
from itertools import product

import jax
import numpy as np

from evorl import mesh
from evorl.errors import OptionError, require
from evorl.replay.prioritized import PrioritizedReplay
from evorl.replay.ring import UniformReplay
from evorl.training import processes
from evorl.types import HasIndependentParts, Workflow
from evorl.workflows import base

MeshShape = tuple[int, int, int]  # number of devices along each of mesh.AXES
MAX_HINT = 256  # number of devices up to which the nearest number that divides is searched
WORDS = {mesh.SEEDS: "seeds", mesh.MEMBERS: "members", mesh.ENVS: "environments"}


def choose_mesh_shape(workflow: Workflow, num_seeds: int, devices: int | None = None) -> MeshShape:
    """Choose how many devices work on each axis: as many as possible, first on seeds, then members, then environments.

    Args:
        workflow: Workflow to train.
        num_seeds: Number of runs.
        devices: Number of devices. None for at most all, which work on seeds and on those parts of a workflow
            that are distributed by default.

    Returns:
        The number of devices along each axis; it divides the size of the axis.

    Raises:
        OptionError: There are fewer devices, or no such shape has this number of them. The message names the
            nearest number that has one.
    """
    there = len(jax.devices())
    can_cross = mesh.ENVS in base.independent_axes(workflow)
    if devices is None:
        sizes = _get_default_sizes(workflow, num_seeds)
        found = _find_largest_shape(sizes, there, can_cross)
        if found is None:
            count = processes.count()
            why = f"{count} processes cannot share {_list_parts(sizes)}; use a multiple of {count}"
            raise OptionError(f"distributed: {why}, such as num_seeds={count}")
        return found
    sizes = {mesh.SEEDS: num_seeds} | base.parallel_axes(workflow)
    found = _find_largest_shape(sizes, devices, can_cross)
    if found is None or math.prod(found) != devices:
        shapes = [_find_largest_shape(sizes, n, can_cross) for n in range(1, 2 * min(devices, MAX_HINT))]
        fits = {math.prod(shape) for shape in shapes if shape is not None}
        nearest = min(fits, key=lambda n: abs(n - devices), default=None)
        hint = f"; {nearest} does" if nearest is not None else ""
        over = f" over {processes.count()} processes" if processes.count() > 1 else ""
        raise OptionError(f"devices={devices}: does not divide {_list_parts(sizes)}{over}{hint}")
    require(devices <= there, "devices", devices, f"must be at most {there}, the number of available devices")
    return found


def make_mesh(shape: MeshShape) -> jax.sharding.Mesh:
    """Make a mesh of this shape, with equally many devices of each process, which are neighbors.

    Args:
        shape: Number of devices along each axis.
    """
    share = math.prod(shape) // processes.count()
    by_process = [[one for one in jax.devices() if one.process_index == i] for i in range(processes.count())]
    chosen = np.array([device for own in by_process for device in own[:share]]).reshape(shape)
    return jax.sharding.Mesh(chosen, mesh.AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(mesh.AXES))


def describe_mesh(workflow: Workflow, num_seeds: int, devices: int | None = None) -> Iterator[str]:
    """Yield lines that say how a training uses the devices, if there are several.

    Args:
        workflow: Workflow to train.
        num_seeds: Number of runs.
        devices: Number of devices, as in `choose_mesh_shape`.
    """
    there, shape = len(jax.devices()), choose_mesh_shape(workflow, num_seeds, devices)
    used, sizes = math.prod(shape), _get_default_sizes(workflow, num_seeds)
    along = " x ".join(f"{n} {WORDS[axis]}" for n, axis in zip(shape, mesh.AXES, strict=True) if n > 1) or "1 run"
    uses_all_cores = jax.default_backend() == "cpu" and used == 1
    if 1 < used == (devices or there):
        yield f"{used} devices: {along}"
    elif devices is None and used < there and not (uses_all_cores and max(sizes.values()) == 1):
        who = "1 device with all cores" if uses_all_cores else f"{used} of {there} devices"
        yield f"{who}: {along}; {_suggest_size(sizes, there)} would use all {there} devices"
    parts = shape[mesh.AXES.index(mesh.ENVS)]
    replay, capacity = getattr(workflow, "replay", None), getattr(workflow, "capacity", 0)
    if isinstance(replay, UniformReplay | PrioritizedReplay) and (left := capacity % parts):
        whole = f"{parts} does not divide it, so each device holds the whole replay buffer"
        yield f"capacity={capacity}: {whole}; {capacity - left} is divided"


def _get_default_sizes(workflow: Workflow, num_seeds: int) -> dict[str, int]:
    """Return the sizes of the axes that are distributed by default."""
    is_shared = isinstance(workflow, HasIndependentParts) and workflow.is_sharded_by_default
    return {mesh.SEEDS: num_seeds} | (base.independent_axes(workflow) if is_shared else {})


def _list_parts(sizes: dict[str, int]) -> str:
    """Return the parts of a training as text, such as "2 seeds or 16 members"."""
    return " or ".join(f"{size} {WORDS[axis]}" for axis, size in sizes.items() if size > 1) or "1 run"


def _find_largest_shape(sizes: dict[str, int], most: int, can_cross: bool) -> MeshShape | None:
    """Return the shape with the most devices, but at most `most`, that divides the sizes of the axes.

    Several processes have equally many of these devices. Unless `can_cross`, environments that share a run or a
    member are in the same process. None if there is no such shape.
    """
    count = processes.count()
    ways = [[n for n in range(1, most + 1) if sizes.get(axis, 1) % n == 0] for axis in mesh.AXES]

    def fits(shape: MeshShape) -> bool:
        used, (seeds, members, envs) = math.prod(shape), shape
        is_nested = envs > 1 and seeds * members > 1  # rollouts cannot be divided within a divided run
        return used <= most and not is_nested and (used if can_cross else seeds * members) % count == 0

    shapes = ((seeds, members, envs) for seeds, members, envs in product(*ways))
    return max(filter(fits, shapes), key=lambda shape: (math.prod(shape), *shape), default=None)


def _suggest_size(sizes: dict[str, int], devices: int) -> str:
    """Return the size of an axis, nearest to the present one, with which all devices are used, such as "8 seeds"."""
    axis, size = max(sizes.items(), key=lambda item: item[1])
    near = range(1, size + devices + 1)[-2 * devices :]
    shapes = {n: _find_largest_shape(sizes | {axis: n}, devices, True) for n in near}
    fits = [n for n, shape in shapes.items() if shape is not None and math.prod(shape) == devices]
    nearest = min(fits, key=lambda n: (abs(n - size), -n))
    return f"{nearest} {WORDS[axis]}"
