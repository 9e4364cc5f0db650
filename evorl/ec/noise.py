"""Standard normal numbers for populations, from one of three sources."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Float, Int, UInt32

from evorl import tree
from evorl.ec.flatten import flatten_member, flatten_population, unflatten_population
from evorl.errors import require, unknown_name_error
from evorl.keys import require_key
from evorl.types import Key, Params

SOURCES = ("exact", "hash", "table")
BLOCK = 4  # rows that are drawn at once


@struct.dataclass
class Seeds:
    """Where n rows of noise come from, leaves [n, ...]: a row is drawn whenever it is wanted, and is then the same."""

    words: UInt32[Array, "*n 2"]  # a key
    # the counter at which the block of a row begins, or the place in the table where a row does
    offset: UInt32[Array, "*n"]
    row: UInt32[Array, "*n"]  # which of its block
    sign: Float[Array, "*n"]  # 1 or -1, or 0 for what has no noise


@dataclass(frozen=True)
class Noise:
    """Where the noise of an evolution strategy comes from.

    exact: the counter-based generator threefry, of which both words are used.
    hash: a counter hash with far fewer operations; no generator of proven quality, but tested.
    table: slices at random places of table_size numbers drawn once (Salimans et al. 2017, arXiv:1703.03864, section 2);
    rows that overlap are correlated, and each run holds a table.
    """

    source: str = "exact"
    table_size: int = 2**24

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise unknown_name_error("source", self.source, SOURCES)
        require(1 <= self.table_size < 2**31, "table_size", self.table_size, "must be from 1 to 2147483647")

    def init(self, key: Key) -> Any:
        """The table [table_size], or nothing."""
        return normal(key, (self.table_size,)) if self.source == "table" else None

    def sample_members(self, mean: Params, std: Any, table: Any, key: Key, n: int, mirrored: bool = False) -> Params:
        """n members mean + std noise, leaves [n, ...]; where mirrored, half of them, and then as many mean - std noise.

        std is a number, or one for each of the parameters in a row. A few rows are drawn at a time and written where
        they belong, so that no numbers are there but the members'.
        """
        center, draws = flatten_member(mean), n // 2 if mirrored else n
        block = find_largest_divisor(draws)
        some = self._make_block_sampler(table, key, draws // block, block, center.size)

        def write(i: Array, members: Params) -> Params:
            deviation = std * compute_unfused(some, i)
            for first, signed in ((0, deviation), (draws, -deviation))[: 1 + mirrored]:
                put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=first + i * block, axis=0)
                members = jax.tree.map(put, members, unflatten_population(center + signed, mean))
            return members

        return jax.lax.fori_loop(
            0, draws // block, write, tree.zeros_like(jax.eval_shape(lambda: tree.broadcast(mean, n)))
        )

    def _make_block_sampler(self, table: Any, key: Key, blocks: int, block: int, size: int) -> Callable[[Array], Array]:
        """Gives the i-th block of rows [block, size]."""
        if self.source != "table":
            source, counter = (
                threefry if self.source == "exact" else hash_counter,
                jax.lax.iota(np.uint32, block * size),
            )
            words = lambda i: source(key, counter + i.astype(np.uint32) * np.uint32(block * size))  # noqa: E731
            return lambda i: to_gaussian(compute_unfused(words, i).reshape(block, size))
        starts = self._sample_table_offsets(key, (blocks, block), size)
        return lambda i: jax.vmap(lambda start: jax.lax.dynamic_slice(table, (start,), (size,)))(starts[i])

    def _sample_table_offsets(self, key: Key, shape: tuple[int, ...], size: int) -> Int[Array, "*shape"]:
        """Where rows begin in the table."""
        require(self.table_size > size, "table_size", self.table_size, f"must exceed the {size} numbers of a member")
        require_key(key)
        return jax.random.randint(key, shape, 0, self.table_size - size + 1)

    def sample_seeds(self, key: Key, n: int, size: int) -> Seeds:
        """Those of the noise of n mirrored members of so many numbers, as `sample_members` draws it."""
        draws, block = n // 2, find_largest_divisor(n // 2)
        words, place = jnp.zeros((draws, 2), np.uint32), np.arange(draws, dtype=np.uint64)
        if self.source == "table":
            first = self._sample_table_offsets(key, (draws,), size).astype(np.uint32)
        else:
            counter = place // block * np.uint64(block * size)
            beyond = mix_bits(
                jnp.asarray((counter >> np.uint64(32)).astype(np.uint32))
            )  # which the counter cannot count
            words = _sample_key_words(key) ^ beyond[:, None]
            first = jnp.asarray(counter.astype(np.uint32))
        pairs = Seeds(words, first, jnp.asarray((place % block).astype(np.uint32)), jnp.ones(draws))
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), pairs, replace(pairs, sign=-pairs.sign))

    def generate_row(self, seed: Seeds, table: Any, size: int, n: int) -> Float[Array, " size"]:
        """The standard normal numbers of one seed of n, without its sign."""
        if self.source == "table":
            return jax.lax.dynamic_slice(table, (seed.offset.astype(np.int32),), (size,))
        place, all_numbers = (
            seed.row * np.uint32(size) + jax.lax.iota(np.uint32, size),
            find_largest_divisor(n // 2) * size,
        )
        if self.source == "hash":
            return to_gaussian(_hash_words(seed.words, seed.offset + place))
        half = np.uint32((all_numbers + 1) // 2)  # threefry makes two words of two counters, so far apart
        lower = jnp.where(place < half, place, place - half)
        upper = jnp.where(lower + half < all_numbers, seed.offset + lower + half, 0)
        both = threefry_2x32(seed.words, jnp.concatenate([seed.offset + lower, upper])).reshape(2, size)
        return to_gaussian(jnp.where(place < half, *both))


def find_largest_divisor(rows: int, most: int = BLOCK) -> int:
    """The largest number up to `most` that divides so many rows."""
    return next(n for n in range(min(most, rows), 0, -1) if rows % n == 0)


def compute_unfused(draw: Callable[[Array], Array], i: Array) -> Array:
    """draw(i), for i from 0, computed by itself.

    XLA would put it into what uses it and compute it for each use, and where that writes in place, on one core.
    """
    if jax.default_backend() != "cpu":
        return draw(i)
    none = tree.zeros_like(jax.eval_shape(draw, i))
    return jax.lax.fori_loop(0, jnp.minimum(i + 1, 1), lambda _, before: draw(i), none)  # once, which XLA cannot know


def _sample_key_words(key: Key) -> UInt32[Array, " 2"]:
    """Two random words, which stand for a key."""
    require_key(key)
    return jax.random.bits(key, (2,), np.uint32)


def threefry(key: Key, counter: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """Random words, twice as many from one block as jax.random.bits takes."""
    return threefry_2x32(_sample_key_words(key), counter)


def hash_counter(key: Key, counter: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """Random words: the counter, and two words of the key, through an integer hash twice."""
    return _hash_words(_sample_key_words(key), counter)


def _hash_words(words: UInt32[Array, "2"], counter: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    first, second = words
    return mix_bits(mix_bits(counter ^ first) + second)


def mix_bits(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """A bijection of words in which every bit of x moves half of the others (Wellons 2018, "lowbias32")."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def integers(key: Key, shape: tuple[int, ...], n: int) -> Int[Array, "*shape"]:
    """Whole numbers from 0 to n - 1, for n far below 2^23; cheaper to compile and to draw than jax.random's."""
    require_key(key)
    return jnp.minimum((jax.random.uniform(key, shape) * n).astype(np.int32), n - 1)


def normal(key: Key, shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Standard normal numbers."""
    return to_gaussian(threefry(key, jax.lax.iota(np.uint32, math.prod(shape))).reshape(shape))


def perturb_members(key: Key, members: Params, std: Any) -> Params:
    """Members, leaves [n, ...], with normal noise on every number."""
    first = flatten_population(members)
    return unflatten_population(first + std * normal(key, first.shape), tree.index(members, 0))


def to_gaussian(words: UInt32[Array, "*n"]) -> Float[Array, "*n"]:
    """Standard normal numbers of random words, by the inverse of their distribution function, at 2^23 places."""
    uniform = (words >> 9).astype(np.float32) * np.float32(2**-22)
    uniform = uniform - np.float32(1 - 2**-23)  # in (-1, 1), as many below 0 as above
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)
