"""Helper functions for pytrees and for control flow under vmap."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int, PyTree, UInt32

from evorl.errors import require

T = TypeVar("T")
WEAK_TYPE_NOTE = " of weak type (a Python number: give it a dtype)"


def fill_fields(kind: type[T], value: Any, **others: Any) -> T:
    """Return an instance of a dataclass with one value in all fields except `others`, as a prefix of a pytree."""
    return kind(**dict.fromkeys((field.name for field in fields(cast(Any, kind))), value) | others)


def index(tree: T, i: int | slice | Array | tuple[Array | slice, ...]) -> T:
    """Return tree[i] for every leaf."""
    return jax.tree.map(lambda x: x[i], tree)


def set_row(tree: T, i: Array, row: T) -> T:
    """Replace index i of the leading axis of a tree by `row`, a tree without that axis."""
    return jax.tree.map(lambda x, new: jax.lax.dynamic_update_index_in_dim(x, new.astype(x.dtype), i, 0), tree, row)


def shift_in(window: T, row: T) -> T:
    """Append a row to a window of rows, leaves [n, ...], and drop its first row."""
    return jax.tree.map(lambda old, new: jnp.concatenate([old[1:], new[None]]), window, row)


def stack(trees: list[T]) -> T:
    """Stack trees of the same structure along a new leading axis [len(trees)]."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def broadcast(tree: T, *shape: int) -> T:
    """Broadcast every leaf along new leading axes `shape`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*shape, *jnp.shape(x))), tree)


def merge_axes(tree: T) -> T:
    """Merge the first two axes of every leaf."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def leading_size(tree: PyTree) -> int:
    """Return the size of the leading axis, which all leaves share."""
    return jax.tree.leaves(tree)[0].shape[0]


def vmap_unless_single(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return jax.vmap of f, except for a single row, to which f is applied without vmap.

    Under vmap, a loop is traced many times and masks the rows that have finished.
    """

    def apply_rows(*rows: Any) -> Any:
        return broadcast(f(*index(rows, 0)), 1) if leading_size(rows) == 1 else jax.vmap(f)(*rows)

    return apply_rows


def select(mask: Bool[Array, "..."], new: T, old: T) -> T:
    """Return `new` where the mask is True, `old` elsewhere; the axes of the mask are the leading axes of the leaves."""

    def select_leaf(a: ArrayLike, b: ArrayLike) -> Array:
        if jax.typeof(a) == jax.typeof(b):  # avoids a jitted jnp.where for each shape
            whole = jax.lax.broadcast_in_dim(mask, jnp.shape(a), range(mask.ndim))
            return jax.lax.select(whole, jnp.asarray(a), jnp.asarray(b))
        return jnp.where(mask.reshape(mask.shape + (1,) * (jnp.ndim(a) - mask.ndim)), a, b)

    return jax.tree.map(select_leaf, new, old)


def test_floats(test: Callable[[Array], Array], tree: PyTree) -> Bool[Array, ""]:
    """Return whether all floating-point values in a tree pass an elementwise test such as jnp.isfinite."""
    real = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack([jnp.bool_(True), *(test(leaf).all() for leaf in real)]).all()


def is_nan_free(tree: PyTree) -> Bool[Array, ""]:
    """Return whether no floating-point value in a tree is NaN."""
    return test_floats(lambda leaf: ~jnp.isnan(leaf), tree)


def find_finite_rows(rows: PyTree) -> Bool[Array, " n"]:
    """Return a mask of the rows, leaves [n, ...], in which all floating-point values are finite."""
    return jax.vmap(lambda row: test_floats(jnp.isfinite, row))(rows)


def replace_nonfinite_rows(rows: T, others: T) -> T:
    """Replace rows, leaves [n, ...], with NaN or infinity by the other rows at their place."""
    return select(find_finite_rows(rows), rows, others)


def drop_weak_types(tree: T) -> T:
    """Convert every leaf to an array without a weak type, so that a loop carry keeps its type."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.result_type(x)), tree)


def mean(tree: T) -> T:
    """Compute the mean of every leaf over the leading axis."""
    return jax.tree.map(lambda x: x.mean(0), tree)


def zeros_like(tree: T) -> T:
    """Return zeros with the shape and dtype of every leaf, an array or its shape."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)


def nbytes(tree: PyTree) -> int:
    """Return the total number of bytes of all leaves, arrays or their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def to_words(leaf: Array) -> UInt32[Array, " n"]:
    """Return the bits of an array as words with at most 32 bits each; -0.0 counts as 0.0."""
    leaf = jnp.ravel(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        leaf = jax.lax.bitcast_convert_type(jnp.where(leaf == 0, 0, leaf), f"uint{min(32, 8 * leaf.dtype.itemsize)}")
    elif leaf.dtype.itemsize > 4:
        leaf = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    return leaf.astype(jnp.uint32).reshape(-1)


def hash_tree(tree: PyTree) -> UInt32[Array, "2"]:
    """Return a 64-bit hash of a tree, in which -0.0 equals 0.0; two different trees collide with probability 2^-64.

    Each half of the hash is the sum over all words of the MurmurHash3 finalizer, a bijection, of the word and
    its position.
    """
    word = jnp.concatenate([to_words(jnp.asarray(leaf)) for leaf in jax.tree.leaves(tree)])
    position = jnp.arange(1, 2 * word.size + 1, dtype=jnp.uint32).reshape(2, -1) * jnp.uint32(0x9E3779B9)
    return _mix_bits(word ^ _mix_bits(position)).sum(-1, dtype=jnp.uint32)


def _mix_bits(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Apply the finalizer of MurmurHash3, so that each output bit depends on all input bits."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@jax.custom_batching.custom_vmap
def any_unbatched(mask: Array) -> Array:
    """Return whether any element is True, over vmapped axes as well.

    As the result is unbatched, it suits the condition of a while_loop that masks finished rows itself.
    """
    return mask.any()


@any_unbatched.def_vmap
def _any_over_copies(axis_size: int, in_batched: list[bool], mask: Array) -> tuple[Array, bool]:
    del axis_size, in_batched
    return any_unbatched(mask), False


@jax.custom_batching.custom_vmap
def max_unbatched(numbers: Array) -> Array:
    """Return the largest element, over vmapped axes as well, so that it suits the index of a `jax.lax.switch`."""
    return numbers.max()


@max_unbatched.def_vmap
def _max_over_copies(axis_size: int, in_batched: list[bool], numbers: Array) -> tuple[Array, bool]:
    del axis_size, in_batched
    return max_unbatched(numbers), False


@jax.custom_batching.custom_vmap
def mask_if_batched(mask: Array) -> Array:
    """Return the mask under vmap, and a constant True otherwise, so that selects by it are compiled away.

    Use it in or after a loop that does not iterate if the mask is False for all copies, so that `new` and
    `old` are then equal.
    """
    return jnp.ones_like(mask)


@mask_if_batched.def_vmap
def _(axis_size: int, in_batched: list[bool], mask: Array) -> tuple[Array, bool]:
    del axis_size, in_batched
    return mask, True


def masked_fori_loop(
    times: Int[Array, ""],
    body: Callable[[Array, T], T],
    carry: T,
    keep_going: Callable[[T], Any] = lambda carry: True,
) -> T:
    """Run carry = body(i, carry) for i < times while keep_going(carry); both may differ between vmapped copies."""

    def is_running(loop: tuple[Array, T]) -> Array:
        return (loop[0] < times) & keep_going(loop[1])

    def run_body(loop: tuple[Array, T]) -> tuple[Array, T]:
        i, carry = loop
        return i + 1, select(mask_if_batched(is_running(loop)), body(i, carry), carry)

    return jax.lax.while_loop(lambda loop: any_unbatched(is_running(loop)), run_body, (jnp.int32(0), carry))[1]


def random_permutation(key: Array, n: int) -> Int[Array, " n"]:
    """Return a random permutation of n rows; for n <= 4096, four times as fast as jax.random.permutation.

    Small permutations come from sorting random integers whose low bits are the row index. Two rows whose
    other bits, 20 or more, are equal keep their order, which happens for one pair of rows in a million.
    """
    bits = max(n - 1, 1).bit_length()
    if bits > 12:
        return jax.random.permutation(key, n)
    low = jnp.uint32(2**bits - 1)
    drawn = jnp.sort((jax.random.bits(key, (n,)) & ~low) | jnp.arange(n, dtype=jnp.uint32))
    return (drawn & low).astype(jnp.int32)


def leaves_by_name(values: Any) -> dict[str, Any]:
    """Return the leaves of a tree by dotted name."""
    leaves = jax.tree_util.tree_leaves_with_path(values)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def join_path(name: str, path: str) -> str:
    """Join a dotted name and a dotted path within it, which may be empty."""
    return f"{name}.{path}" if path else name


def find_mismatches(where: str, found: Any, wanted: Any, because: str = "") -> Iterator[str]:
    """Yield the leaves in which two trees of shapes differ or, if there are none, a difference in structure."""
    given, must = leaves_by_name(found), leaves_by_name(wanted)
    for path in {**must, **given}:
        was, to_be = describe_leaf(given.get(path)), describe_leaf(must.get(path))
        if was == to_be:
            was, to_be = was + WEAK_TYPE_NOTE * given[path].weak_type, to_be + WEAK_TYPE_NOTE * must[path].weak_type
        if was != to_be:
            yield f"{join_path(where, path)} is {was}, must be {to_be} {because}".rstrip()
    if given.keys() == must.keys() and jax.tree.structure(found) != jax.tree.structure(wanted):
        yield f"{where} is {jax.tree.structure(found)}, must be {jax.tree.structure(wanted)} {because}".rstrip()


def describe_leaf(leaf: Any) -> str:
    """Return the dtype and the shape of a leaf as text."""
    return "missing" if leaf is None else f"{leaf.dtype} {list(leaf.shape)}"


def require_32_bits() -> None:
    """Raise OptionError if JAX computes in 64 bits, which states do not support."""
    wide = jnp.result_type(float) == jnp.float64
    require(not wide, "jax_enable_x64", True, "must be False: evorl computes in 32 bits, float32 and int32")


def as_arrays(params: Any) -> Any:
    """Return environment parameters as leaves of a state: arrays, float32 if the declared default is a float.

    Raises:
        OptionError: If JAX computes in 64 bits.
    """
    require_32_bits()
    return drop_weak_types(_cast_to_declared_types(params))


def resolve_env_params(env: Any, env_params: Any) -> Any:
    """Return environment parameters, None for the default ones of the environment, as leaves of a state."""
    return as_arrays(env.default_params if env_params is None else env_params)


def _cast_to_declared_types(params: Any) -> Any:
    """Convert ints in parameters to floats if the declared default is a float, such as 1 for a length."""
    if isinstance(params, Mapping):
        return {name: _cast_to_declared_types(value) for name, value in params.items()}
    if not is_dataclass(params) or isinstance(params, type):
        return params
    changed = {}
    for field in fields(params):
        value = getattr(params, field.name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        changed[field.name] = (
            float(value) if whole and isinstance(field.default, float) else _cast_to_declared_types(value)
        )
    return replace(params, **changed)
