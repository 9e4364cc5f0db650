"""Standard normal noise for populations, from one of three sources."""

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
BLOCK = 4  # maximum number of rows generated at once


@struct.dataclass
class Seeds:
    """Seeds of n rows of noise, leaves [n, ...].

    A row can be generated from its seed at any time and is always the same.
    """

    words: UInt32[Array, "*n 2"]  # two words of a random key
    # counter at the start of the row's block, or position of the row in the table
    offset: UInt32[Array, "*n"]
    row: UInt32[Array, "*n"]  # index of the row in its block
    sign: Float[Array, "*n"]  # 1 or -1; 0 for no noise


@dataclass(frozen=True)
class Noise:
    """Source of the noise of an evolution strategy.

    Args:
        source: "exact", "hash" or "table". "exact" is the counter-based generator threefry; both words of
            each block are used. "hash" is a hash of a counter, with far fewer operations; it is tested, but
            it is not a generator of proven quality. "table" takes slices at random offsets of a table of
            random numbers that is drawn once. Rows that overlap in the table are correlated, and each run
            holds a table in memory.
        table_size: Number of entries of the table; used only by "table".

    Source: "table" is the noise table of Salimans et al. 2017, arXiv:1703.03864, section 2.
    """

    source: str = "exact"
    table_size: int = 2**24

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise unknown_name_error("source", self.source, SOURCES)
        require(1 <= self.table_size < 2**31, "table_size", self.table_size, "must be from 1 to 2147483647")

    def init(self, key: Key) -> Any:
        """Return the noise table, shape [table_size], or None if the source is not "table"."""
        return normal(key, (self.table_size,)) if self.source == "table" else None

    def sample_members(self, mean: Params, std: Any, table: Any, key: Key, n: int, mirrored: bool = False) -> Params:
        """Sample a population of n individuals from mean + std * noise.

        Noise is drawn in blocks of a few rows, which are written directly into the population. No array with
        the noise of the whole population is created.

        Args:
            mean: Parameters at the center of the population.
            std: Standard deviation, a scalar or one value per parameter, shape [size].
            table: Noise table from `init`, or None.
            key: Random key.
            n: Number of individuals.
            mirrored: Whether to sample n / 2 individuals mean + std * noise, followed by n / 2 individuals
                mean - std * noise with the same noise. In this case n must be even.

        Returns:
            The individuals as parameters, leaves [n, ...].

        Raises:
            OptionError: If the source is "table" and the table is not larger than one individual.
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
        """Return a function of i that generates the i-th block of noise, shape [block, size]."""
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
        """Sample the offsets in the table at which rows of `size` numbers begin."""
        require(
            self.table_size > size, "table_size", self.table_size, f"must be above the number of parameters, {size}"
        )
        require_key(key)
        return jax.random.randint(key, shape, 0, self.table_size - size + 1)

    def sample_seeds(self, key: Key, n: int, size: int) -> Seeds:
        """Sample the seeds of the same mirrored noise that `sample_members` draws with this key.

        Args:
            key: Random key.
            n: Number of individuals, even.
            size: Number of noise values of one individual.

        Returns:
            Seeds, leaves [n, ...]. The second half repeats the first half with the opposite sign.

        Raises:
            OptionError: If the source is "table" and the table is not larger than `size`.
        """
        draws, block = n // 2, find_largest_divisor(n // 2)
        words, place = jnp.zeros((draws, 2), np.uint32), np.arange(draws, dtype=np.uint64)
        if self.source == "table":
            first = self._sample_table_offsets(key, (draws,), size).astype(np.uint32)
        else:
            counter = place // block * np.uint64(block * size)
            beyond = mix_bits(
                jnp.asarray((counter >> np.uint64(32)).astype(np.uint32))
            )  # the part above 32 bits, which the counter cannot represent
            words = _sample_key_words(key) ^ beyond[:, None]
            first = jnp.asarray(counter.astype(np.uint32))
        pairs = Seeds(words, first, jnp.asarray((place % block).astype(np.uint32)), jnp.ones(draws))
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), pairs, replace(pairs, sign=-pairs.sign))

    def generate_row(self, seed: Seeds, table: Any, size: int, n: int) -> Float[Array, " size"]:
        """Return the standard normal noise of one seed, without its sign.

        Args:
            seed: One seed, leaves without a batch axis.
            table: Noise table from `init`, or None.
            size: Number of noise values of one individual.
            n: Number of individuals for which the seeds were sampled.

        Returns:
            Noise, shape [size].
        """
        if self.source == "table":
            return jax.lax.dynamic_slice(table, (seed.offset.astype(np.int32),), (size,))
        place, all_numbers = (
            seed.row * np.uint32(size) + jax.lax.iota(np.uint32, size),
            find_largest_divisor(n // 2) * size,
        )
        if self.source == "hash":
            return to_gaussian(_hash_words(seed.words, seed.offset + place))
        half = np.uint32((all_numbers + 1) // 2)  # threefry hashes a counter together with the one this far away
        lower = jnp.where(place < half, place, place - half)
        upper = jnp.where(lower + half < all_numbers, seed.offset + lower + half, 0)
        both = threefry_2x32(seed.words, jnp.concatenate([seed.offset + lower, upper])).reshape(2, size)
        return to_gaussian(jnp.where(place < half, *both))


def find_largest_divisor(rows: int, most: int = BLOCK) -> int:
    """Return the largest divisor of `rows` that is at most `most`."""
    return next(n for n in range(min(most, rows), 0, -1) if rows % n == 0)


def compute_unfused(draw: Callable[[Array], Array], i: Array) -> Array:
    """Return draw(i), i >= 0, computed once and not fused into the operations that use it.

    On a CPU, XLA would otherwise recompute it for each use. If the use is an in-place write, the computation
    would also run on a single core.
    """
    if jax.default_backend() != "cpu":
        return draw(i)
    none = tree.zeros_like(jax.eval_shape(draw, i))
    # one iteration, but XLA cannot know that
    return jax.lax.fori_loop(0, jnp.minimum(i + 1, 1), lambda _, before: draw(i), none)


def _sample_key_words(key: Key) -> UInt32[Array, " 2"]:
    """Return two random words that serve as a key for threefry or the hash."""
    require_key(key)
    return jax.random.bits(key, (2,), np.uint32)


def threefry(key: Key, counter: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """Return random words by threefry, twice as many per block as jax.random.bits."""
    return threefry_2x32(_sample_key_words(key), counter)


def hash_counter(key: Key, counter: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """Return random words: each counter value, combined with two words of the key, passes an integer hash twice."""
    return _hash_words(_sample_key_words(key), counter)


def _hash_words(words: UInt32[Array, "2"], counter: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    first, second = words
    return mix_bits(mix_bits(counter ^ first) + second)


def mix_bits(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """Apply a bijective hash in which each input bit flips about half of the output bits.

    Source: "lowbias32" of Wellons 2018.
    """
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def integers(key: Key, shape: tuple[int, ...], n: int) -> Int[Array, "*shape"]:
    """Sample integers uniformly from 0 to n - 1, for n far below 2^23.

    This is cheaper to compile and to run than jax.random.randint.
    """
    require_key(key)
    return jnp.minimum((jax.random.uniform(key, shape) * n).astype(np.int32), n - 1)


def normal(key: Key, shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Sample standard normal numbers of the given shape."""
    return to_gaussian(threefry(key, jax.lax.iota(np.uint32, math.prod(shape))).reshape(shape))


def perturb_members(key: Key, members: Params, std: Any) -> Params:
    """Add normal noise with standard deviation `std` to every parameter of a population, leaves [n, ...]."""
    first = flatten_population(members)
    return unflatten_population(first + std * normal(key, first.shape), tree.index(members, 0))


def to_gaussian(words: UInt32[Array, "*n"]) -> Float[Array, "*n"]:
    """Map random words to standard normal numbers by the inverse of the normal CDF, at 2^23 distinct values."""
    uniform = (words >> 9).astype(np.float32) * np.float32(2**-22)
    uniform = uniform - np.float32(1 - 2**-23)  # in (-1, 1), symmetric around 0
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)
