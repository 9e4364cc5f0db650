"""Choice of the device mesh of a training: how many devices work on its seeds, members and environments."""

import math
from collections.abc import Iterator
from itertools import product

import jax

from evorl import mesh
from evorl.errors import OptionError, require
from evorl.types import ShardedByDefault, Workflow
from evorl.workflows import base

MeshShape = tuple[int, int, int]  # number of devices along each of mesh.AXES
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
    if devices is None:
        return _find_largest_shape(_get_default_sizes(workflow, num_seeds), there)
    sizes = {mesh.SEEDS: num_seeds} | base.parallel_axes(workflow)
    found = _find_largest_shape(sizes, devices)
    if math.prod(found) != devices:
        fits = [n for n in range(1, 2 * devices) if math.prod(_find_largest_shape(sizes, n)) == n]
        nearest = min(fits, key=lambda n: abs(n - devices))
        parts = " or ".join(f"{size} {WORDS[axis]}" for axis, size in sizes.items() if size > 1) or "1 run"
        raise OptionError(f"devices={devices}: does not divide {parts}; {nearest} does")
    require(devices <= there, "devices", devices, f"must be at most {there}, the number of available devices")
    return found


def describe_mesh(workflow: Workflow, num_seeds: int, devices: int | None = None) -> Iterator[str]:
    """Yield a line that says how a training uses the devices, if there are several.

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


def _get_default_sizes(workflow: Workflow, num_seeds: int) -> dict[str, int]:
    """Return the sizes of the axes that are distributed by default."""
    return {mesh.SEEDS: num_seeds} | (workflow.parallel_axes if isinstance(workflow, ShardedByDefault) else {})


def _find_largest_shape(sizes: dict[str, int], most: int) -> MeshShape:
    """Return the shape with the most devices, but at most `most`, that divides the sizes of the axes."""
    ways = [[n for n in range(1, most + 1) if sizes.get(axis, 1) % n == 0] for axis in mesh.AXES]
    return max((shape for shape in product(*ways) if math.prod(shape) <= most), key=lambda s: (math.prod(s), *s))


def _suggest_size(sizes: dict[str, int], devices: int) -> str:
    """Return the size of an axis, nearest to the present one, with which all devices are used, such as "8 seeds"."""
    axis, size = max(sizes.items(), key=lambda item: item[1])
    fits = [
        n for n in range(1, size + devices + 1) if math.prod(_find_largest_shape(sizes | {axis: n}, devices)) == devices
    ]
    nearest = min(fits, key=lambda n: (abs(n - size), -n))
    return f"{nearest} {WORDS[axis]}"
