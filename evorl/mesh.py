"""Sharding over several devices: the independent parts of a program run in parallel on them.

The driver compiles with a mesh whose axes have the names below. Without a mesh, or inside a function that is
already sharded over the axis, these functions change nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool, Int

T = TypeVar("T")

SEEDS, MEMBERS, ENVS = AXES = ("seeds", "members", "envs")


@contextmanager
def eager_mode() -> Iterator[None]:
    """Execute jnp operations eagerly within this context, even during a trace or inside a sharded function."""
    nowhere = jax.sharding.AbstractMesh((), ())
    with jax.ensure_compile_time_eval(), jax.sharding.use_abstract_mesh(nowhere):
        yield


def count_shards(axis: str, of_type: AxisType = AxisType.Auto) -> int:
    """Return the number of devices over which an axis can be sharded here; 1 if it cannot.

    With `of_type` Manual, it is the number of devices over which the axis is sharded here.
    """
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return mesh.shape[axis] if types.get(axis) == of_type else 1


def shard_over_axis(f: Callable[..., T], axis: str, ins: Any, outs: Any, size: int | None = None) -> Callable[..., T]:
    """Shard a function over a mesh axis, so that each device computes its part.

    With `size`, the function stays whole if the devices do not divide this number of rows.

    `ins` and `outs` are prefixes of the trees of the arguments and of the results. A leaf is True if they
    have the axis as their leading axis, False if they are replicated, or a PartitionSpec.
    """
    shards = count_shards(axis)
    if shards == 1 or (size is not None and size % shards):
        return f
    whole = jax.sharding.get_abstract_mesh().shape
    names = {axis, *(name for name in AXES if whole[name] == 1)}  # host callbacks need all axes to be manual

    def to_specs(tree: Any) -> Any:
        to_spec = lambda leaf: leaf if isinstance(leaf, PartitionSpec) else PartitionSpec(*[axis] * leaf)  # noqa: E731
        return jax.tree.map(to_spec, tree)

    def run_part(*args: Any) -> T:
        # jaxlib 0.11 crashes on inputs without elements; an input that is not used does not enter the program.
        return f(*jax.tree.map(lambda x: x if x.size else jnp.zeros_like(x), args))

    return jax.shard_map(run_part, in_specs=to_specs(ins), out_specs=to_specs(outs), axis_names=names, check_vma=False)


def spread_rows(x: T, axis: str, at: int = 0) -> T:
    """Spread the array axis `at` of each leaf over a mesh axis, so that each device computes with its own rows.

    Sums over the rows, such as gradients, are then sums over the devices. Leaves whose size the number of
    devices does not divide stay as they are.
    """
    shards = count_shards(axis)

    def spread_leaf(x: Array) -> Array:
        if x.ndim <= at or x.shape[at] % shards:
            return x
        free = PartitionSpec.UNCONSTRAINED
        return jax.lax.with_sharding_constraint(x, PartitionSpec(*[free] * at, axis, *[free] * (x.ndim - at - 1)))

    return x if shards == 1 else jax.tree.map(spread_leaf, x)


def gather_shards(x: T, axis: str, at: int = 0) -> T:
    """Gather x from all devices inside a sharded function, and concatenate its leaves along the array axis `at`."""
    if count_shards(axis, AxisType.Manual) == 1:
        return x
    return jax.tree.map(lambda x: jax.lax.all_gather(x, axis, axis=at, tiled=True), x)


def local_shard(x: T, axis: str, n: int) -> T:
    """Return the n rows of this device from x, leaves [total, ...]; all rows if total is n, without sharding."""

    def slice_leaf(x: Array) -> Array:
        if x.shape[0] == n:
            return x
        return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axis) * n, n)

    return jax.tree.map(slice_leaf, x)


def local_index(i: Int[Array, "*k"], axis: str, n: int, total: int) -> tuple[Int[Array, "*k"], Bool[Array, "..."]]:
    """Return the local index of row i on this device, and whether the device has that row, for each of several i.

    The device has n of the total rows. If it does not have row i, the index is that of another valid row.
    """
    if n == total:
        return i, jnp.bool_(True)
    found = i - jax.lax.axis_index(axis) * n
    return jnp.clip(found, 0, n - 1), (found >= 0) & (found < n)


def broadcast_row(x: T, i: Array, axis: str, total: int) -> T:
    """Return row i of the `total` rows of x on all devices; x has leaves [n, ...] on each device."""
    n = jax.tree.leaves(x)[0].shape[0]
    at, here = local_index(i, axis, n, total)

    def psum_row(x: Array) -> Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(psum_row(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        numbers = x[at].astype(jnp.int32) if x.dtype == bool else x[at]
        return jax.lax.psum(jnp.where(here, numbers, 0), axis).astype(x.dtype)

    return jax.tree.map((lambda x: x[i]) if n == total else psum_row, x)


def any_device(mask: Bool[Array, ""], axis: str) -> Bool[Array, ""]:
    """Return whether the mask is true on any device, inside a sharded function."""
    if count_shards(axis, AxisType.Manual) == 1:
        return mask
    return jax.lax.psum(mask.astype(jnp.int32), axis) > 0


def psum(x: T, axis: str) -> T:
    """Sum x over the devices inside a sharded function."""
    return x if count_shards(axis, AxisType.Manual) == 1 else jax.lax.psum(x, axis)
