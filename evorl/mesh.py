"""Several devices: what is independent in a program runs side by side on them.

The driver compiles with a mesh whose axes have these names; without one, or within a part that has been spread already,
everything here does nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool

T = TypeVar("T")

SEEDS, MEMBERS, ENVS = AXES = ("seeds", "members", "envs")


@contextmanager
def eager_mode() -> Iterator[None]:
    """Here jnp computes at once, also where a trace has asked for it, or a part that is spread."""
    nowhere = jax.sharding.AbstractMesh((), ())
    with jax.ensure_compile_time_eval(), jax.sharding.use_abstract_mesh(nowhere):
        yield


def count_shards(axis: str, of_type: AxisType = AxisType.Auto) -> int:
    """Over how many devices an axis can be spread here, or is where of_type is Manual."""
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return mesh.shape[axis] if types.get(axis) == of_type else 1


def shard_over_axis(f: Callable[..., T], axis: str, ins: Any, outs: Any) -> Callable[..., T]:
    """f, of which each device computes its part: ins and outs say of the arguments and results whether they lead with
    the axis, True, or are the same everywhere, False; each is a prefix of their trees.
    """
    if count_shards(axis) == 1:
        return f
    whole = jax.sharding.get_abstract_mesh().shape
    names = {axis, *(name for name in AXES if whole[name] == 1)}  # with all of them it may call the host
    to_specs = lambda tree: jax.tree.map(lambda leads: PartitionSpec(axis) if leads else PartitionSpec(), tree)  # noqa: E731
    return jax.shard_map(f, in_specs=to_specs(ins), out_specs=to_specs(outs), axis_names=names, check_vma=False)


def gather_shards(x: T, axis: str, at: int = 0) -> T:
    """Within a part that is spread: x of all devices, leaves joined along the axis `at`."""
    if count_shards(axis, AxisType.Manual) == 1:
        return x
    return jax.tree.map(lambda x: jax.lax.all_gather(x, axis, axis=at, tiled=True), x)


def local_shard(x: T, axis: str, n: int) -> T:
    """Of x, leaves [total, ...], the n rows of this device; all of them where nothing is spread, so that total is n."""

    def slice_leaf(x: Array) -> Array:
        if x.shape[0] == n:
            return x
        return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axis) * n, n)

    return jax.tree.map(slice_leaf, x)


def local_index(i: Array, axis: str, n: int, total: int) -> tuple[Array, Bool[Array, ""]]:
    """Where this device, which has n rows of total, has row i, or another row; and whether it has it."""
    if n == total:
        return i, jnp.bool_(True)
    found = i - jax.lax.axis_index(axis) * n
    return jnp.clip(found, 0, n - 1), (found >= 0) & (found < n)


def broadcast_row(x: T, i: Array, axis: str, total: int) -> T:
    """Row i of total of x, leaves [n, ...] on each device, on all of them."""
    n = jax.tree.leaves(x)[0].shape[0]
    at, here = local_index(i, axis, n, total)

    def psum_row(x: Array) -> Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(psum_row(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        numbers = x[at].astype(jnp.int32) if x.dtype == bool else x[at]
        return jax.lax.psum(jnp.where(here, numbers, 0), axis).astype(x.dtype)

    return jax.tree.map((lambda x: x[i]) if n == total else psum_row, x)


def any_device(mask: Bool[Array, ""], axis: str) -> Bool[Array, ""]:
    """Whether on any device of a part that is spread."""
    if count_shards(axis, AxisType.Manual) == 1:
        return mask
    return jax.lax.psum(mask.astype(jnp.int32), axis) > 0


def psum(x: T, axis: str) -> T:
    """Within a part that is spread: the sum of x over the devices."""
    return x if count_shards(axis, AxisType.Manual) == 1 else jax.lax.psum(x, axis)
