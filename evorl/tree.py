"""The few pytree helpers that every part uses."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree, UInt32

from evorl.errors import require

T = TypeVar("T")
WEAK_TYPE_NOTE = " of weak type (a Python number: give it a dtype)"


def fill_fields(kind: type[T], value: Any, **others: Any) -> T:
    """Return an instance of a dataclass with one value in all fields but others, as prefixes of pytrees have."""
    return kind(**dict.fromkeys((field.name for field in fields(cast(Any, kind))), value) | others)


def index(tree: T, i: int | slice | Array | tuple[Array, ...]) -> T:
    """tree[i] of every leaf."""
    return jax.tree.map(lambda x: x[i], tree)


def set_row(tree: T, i: Array, row: T) -> T:
    """tree with row, a tree without the leading axis, in place i."""
    return jax.tree.map(lambda x, new: jax.lax.dynamic_update_index_in_dim(x, new.astype(x.dtype), i, 0), tree, row)


def shift_in(window: T, row: T) -> T:
    """The last rows, leaves [n, ...], with a new one at their end and without the first."""
    return jax.tree.map(lambda old, new: jnp.concatenate([old[1:], new[None]]), window, row)


def stack(trees: list[T]) -> T:
    """Trees of one structure as one tree whose leaves lead with [len(trees)]."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def broadcast(tree: T, *shape: int) -> T:
    """The same tree `shape` times: leaves lead with shape."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*shape, *jnp.shape(x))), tree)


def merge_axes(tree: T) -> T:
    """The first two axes of every leaf as one."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def leading_size(tree: PyTree) -> int:
    """The length of the leading axis that all leaves share."""
    return jax.tree.leaves(tree)[0].shape[0]


def vmap_unless_single(f: Callable[..., Any]) -> Callable[..., Any]:
    """jax.vmap of f, but of one row f alone: under vmap a loop is traced many times, and selects what has ended."""

    def apply_rows(*rows: Any) -> Any:
        return broadcast(f(*index(rows, 0)), 1) if leading_size(rows) == 1 else jax.vmap(f)(*rows)

    return apply_rows


def select(mask: Bool[Array, "..."], new: T, old: T) -> T:
    """Return new where mask, old elsewhere; mask is as long as the leading axes that it covers."""

    def select_leaf(a: Array, b: Array) -> Array:
        if jax.typeof(a) == jax.typeof(b):  # which jnp.where would make a function of its own of, for each shape
            return jax.lax.select(jax.lax.broadcast_in_dim(mask, a.shape, range(mask.ndim)), a, b)
        return jnp.where(mask.reshape(mask.shape + (1,) * (jnp.ndim(a) - mask.ndim)), a, b)

    return jax.tree.map(select_leaf, new, old)


def test_floats(test: Callable[[Array], Array], tree: PyTree) -> Bool[Array, ""]:
    """Whether all real numbers in a tree pass a test by element, such as jnp.isfinite."""
    real = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack([jnp.bool_(True), *(test(leaf).all() for leaf in real)]).all()


def is_nan_free(tree: PyTree) -> Bool[Array, ""]:
    """Whether no real number in a tree is NaN."""
    return test_floats(lambda leaf: ~jnp.isnan(leaf), tree)


def find_finite_rows(rows: PyTree) -> Bool[Array, " n"]:
    """Which rows, leaves [n, ...], hold no real number but finite ones."""
    return jax.vmap(lambda row: test_floats(jnp.isfinite, row))(rows)


def drop_weak_types(tree: T) -> T:
    """Every leaf an array of its own dtype, never of a weak type, so that a loop carries it unchanged."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.result_type(x)), tree)


def mean(tree: T) -> T:
    """The mean over the leading axis of every leaf."""
    return jax.tree.map(lambda x: x.mean(0), tree)


def zeros_like(tree: T) -> T:
    """Zeros like every leaf, an array or its shape."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)


def nbytes(tree: PyTree) -> int:
    """Bytes of all leaves, of arrays or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def to_words(leaf: Array) -> UInt32[Array, " n"]:
    """All bits of an array, of at most 32 in a word; a real number that is -0 has those of 0."""
    leaf = jnp.ravel(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        leaf = jax.lax.bitcast_convert_type(jnp.where(leaf == 0, 0, leaf), f"uint{min(32, 8 * leaf.dtype.itemsize)}")
    elif leaf.dtype.itemsize > 4:
        leaf = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    return leaf.astype(jnp.uint32).reshape(-1)


def hash_tree(tree: PyTree) -> UInt32[Array, "2"]:
    """A hash of 64 bits of all words, -0 as 0: two trees that are not the same share it once in 2^64.

    Two sums over all words of what MurmurHash3's finalizer, a bijection, makes of a word and its position.
    """
    word = jnp.concatenate([to_words(jnp.asarray(leaf)) for leaf in jax.tree.leaves(tree)])
    position = jnp.arange(1, 2 * word.size + 1, dtype=jnp.uint32).reshape(2, -1) * jnp.uint32(0x9E3779B9)
    return _mix_bits(word ^ _mix_bits(position)).sum(-1, dtype=jnp.uint32)


def _mix_bits(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """The finalizer of MurmurHash3, by which each bit depends on all."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@jax.custom_batching.custom_vmap
def any_unbatched(mask: Array) -> Array:
    """Any, over every vmapped axis too: an unbatched predicate for a while_loop that masks finished rows itself."""
    return mask.any()


@any_unbatched.def_vmap
def _any_over_copies(axis_size: int, in_batched: list[bool], mask: Array) -> tuple[Array, bool]:
    del axis_size, in_batched
    return any_unbatched(mask), False


@jax.custom_batching.custom_vmap
def mask_if_batched(mask: Array) -> Array:
    """Give vmapped copies their own mask, and one copy alone a constant True, so that its selects vanish.

    Use it in or after a loop that takes no turn where the mask holds for no copy: there new and old are the same.
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
    """carry <- body(i, carry) for i < times while keep_going(carry); both may differ between vmapped copies."""

    def is_running(loop: tuple[Array, T]) -> Array:
        return (loop[0] < times) & keep_going(loop[1])

    def run_body(loop: tuple[Array, T]) -> tuple[Array, T]:
        i, carry = loop
        return i + 1, select(mask_if_batched(is_running(loop)), body(i, carry), carry)

    return jax.lax.while_loop(lambda loop: any_unbatched(is_running(loop)), run_body, (jnp.int32(0), carry))[1]


def random_permutation(key: Array, n: int) -> Int[Array, " n"]:
    """A permutation; of few rows by sorting numbers that end with the row's, four times as fast as jax.random's own.

    Two rows whose other bits, 20 or more, are the same keep their order, which is one pair of rows in a million.
    """
    bits = max(n - 1, 1).bit_length()
    if bits > 12:
        return jax.random.permutation(key, n)
    low = jnp.uint32(2**bits - 1)
    drawn = jnp.sort((jax.random.bits(key, (n,)) & ~low) | jnp.arange(n, dtype=jnp.uint32))
    return (drawn & low).astype(jnp.int32)


def leaves_by_name(values: Any) -> dict[str, Any]:
    """Leaves by dotted name."""
    leaves = jax.tree_util.tree_leaves_with_path(values)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def join_path(name: str, path: str) -> str:
    """A dotted name and one within it."""
    return f"{name}.{path}" if path else name


def find_mismatches(where: str, found: Any, wanted: Any, because: str = "") -> Iterator[str]:
    """The leaves in which two trees of shapes differ, or else the structure."""
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
    """The dtype and the shape of a leaf, in words."""
    return "missing" if leaf is None else f"{leaf.dtype} {list(leaf.shape)}"


def require_32_bits() -> None:
    """Raise OptionError where JAX computes in 64 bits, for which no state is made."""
    wide = jnp.result_type(float) == jnp.float64
    require(not wide, "jax_enable_x64", True, "must be False: evorl computes in 32 bits, float32 and int32")


def as_arrays(params: Any) -> Any:
    """Return the parameters of an environment as leaves of a state: arrays, float32 where the default is a float.

    Raises:
        OptionError: where JAX computes in 64 bits.
    """
    require_32_bits()
    return drop_weak_types(_cast_to_declared_types(params))


def _cast_to_declared_types(params: Any) -> Any:
    """params with whole numbers as floats where the default is one, as 1 for a length."""
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
