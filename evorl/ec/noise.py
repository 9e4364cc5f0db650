"""Standard normal noise for populations, from one of three sources."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Float, Int, UInt32

from evorl import mesh, tree
from evorl.ec.flatten import flatten_member, flatten_population, unflatten_member, unflatten_population
from evorl.errors import require, unknown_name_error
from evorl.keys import require_key
from evorl.types import Key, Params

SOURCES = ("exact", "hash", "table")
CPU_BLOCK_NUMBERS = 2**16  # noise values that are generated at once on a CPU, so that they stay in its cache
ACCELERATOR_BLOCK_NUMBERS = 2**26  # the same on an accelerator, 256 MB, so that a few launches fill it
MIN_BLOCK = 4  # rows that are generated at once even if they have more values
T = TypeVar("T")


@struct.dataclass
class Seeds:
    """Seeds of n rows of noise, leaves [n, ...].

    A row can be generated from its seed at any time and is always the same.
    """

    words: UInt32[Array, "*n 2"]  # two words of a random key
    row: UInt32[Array, "*n"]  # index of the row, or its position in the table
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

        Several devices generate the individuals of their own environments. No array with the noise of the
        whole population is created.

        Args:
            mean: Parameters at the center of the population.
            std: Standard deviation, a scalar or one value per parameter, shape [size].
            table: Noise table from `init`, or None.
            key: Random key.
            n: Number of individuals.
            mirrored: Whether individuals come in mirrored pairs: individual 2 i is mean + std * noise, and
                2 i + 1 is mean - std * noise with the same noise. In this case n must be even.

        Returns:
            The individuals as parameters, leaves [n, ...].

        Raises:
            OptionError: If the source is "table" and the table is not larger than one individual.
        """
        size = flatten_member(mean).size

        def sample_shard(seeds: Seeds, mean: Params, std: Any, table: Any) -> Params:
            center, shared = flatten_member(mean), 2 if mirrored and len(seeds.sign) % 2 == 0 else 1

            def build_member(noise: Array, sign: Array) -> Params:
                return unflatten_member(center + std * sign * noise, mean)

            return self.materialize(seeds, table, size, build_member, shared)

        sample = mesh.shard_over_axis(sample_shard, mesh.ENVS, (True, False, False, False), True, n)
        return sample(self.sample_seeds(key, n, size, mirrored), mean, std, table)

    def _sample_table_offsets(self, key: Key, shape: tuple[int, ...], size: int) -> Int[Array, "*shape"]:
        """Sample the offsets in the table at which rows of `size` numbers begin."""
        require(
            self.table_size > size, "table_size", self.table_size, f"must be above the number of parameters, {size}"
        )
        require_key(key)
        return jax.random.randint(key, shape, 0, self.table_size - size + 1)

    def sample_seeds(self, key: Key, n: int, size: int, mirrored: bool = True) -> Seeds:
        """Sample the seeds of the same noise that `sample_members` draws with this key.

        Args:
            key: Random key.
            n: Number of individuals.
            size: Number of noise values of one individual.
            mirrored: Whether individuals 2 i and 2 i + 1 have the same noise with opposite signs. In this
                case n must be even.

        Returns:
            Seeds, leaves [n, ...].

        Raises:
            OptionError: If the source is "table" and the table is not larger than `size`.
        """
        place, shared = jax.lax.iota(np.uint32, n), 1 + mirrored
        row = place // shared
        if self.source == "table":
            words, row = jnp.zeros(2, np.uint32), self._sample_table_offsets(key, (n // shared,), size)[row]
        else:
            words = _sample_key_words(key)
        return Seeds(tree.broadcast(words, n), row.astype(np.uint32), 1.0 - 2.0 * (place % shared))

    def generate_row(self, seed: Seeds, table: Any, size: int) -> Float[Array, " size"]:
        """Return the standard normal noise of one seed, without its sign.

        Args:
            seed: One seed, leaves without a batch axis.
            table: Noise table from `init`, or None.
            size: Number of noise values of one individual.

        Returns:
            Noise, shape [size].
        """
        if self.source == "table":
            return jax.lax.dynamic_slice(table, (seed.row.astype(np.int32),), (size,))
        if self.source == "hash":
            return to_gaussian(hash_words(_hash_row(seed.words, seed.row), jax.lax.iota(np.uint32, size)))
        half = -(-size // 2)  # a block of threefry hashes two words: the position in the row and the row
        counter = jnp.concatenate([jax.lax.iota(np.uint32, half), jnp.full(half, seed.row)])
        return to_gaussian(threefry_2x32(seed.words, counter)[:size])

    def materialize(
        self,
        seeds: Seeds,
        table: Any,
        size: int,
        build_member: Callable[[Float[Array, " size"], Float[Array, ""]], T],
        shared: int = 1,
    ) -> T:
        """Build the individuals of seeds. Only one block of noise is in memory at a time.

        Args:
            seeds: Seeds of m individuals, leaves [m, ...].
            table: Noise table from `init`, or None.
            size: Number of noise values of one individual.
            build_member: Function from the noise [size] and the sign of an individual to the individual.
            shared: Number of consecutive seeds that have the same noise, up to their sign.

        Returns:
            The individuals, leaves [m, ...].
        """
        rows = tree.index(seeds, slice(None, None, shared))
        signs = seeds.sign.reshape(-1, shared)
        block = choose_block(len(signs), size)
        build = jax.vmap(jax.vmap(build_member, (None, 0)))

        def generate(i: Array) -> Array:
            return jax.vmap(lambda seed: self.generate_row(seed, table, size))(take_block(i, block, rows))

        def write(i: Array, members: T) -> T:
            some = build(compute_unfused(generate, i), take_block(i, block, signs))

            def put(to: Array, x: Array) -> Array:
                x = x.reshape(block * shared, *x.shape[2:])
                return jax.lax.dynamic_update_slice_in_dim(to, x, i * block * shared, 0)

            return jax.tree.map(put, members, some)

        like = jax.eval_shape(jax.vmap(build_member), jnp.zeros((len(seeds.sign), size)), seeds.sign)
        return jax.lax.fori_loop(0, len(signs) // block, write, tree.zeros_like(like))


def take_block(i: Array, block: int, rows: T) -> T:
    """Return the i-th block of rows, leaves [block, ...], of arrays with leaves [n, ...]."""
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * block, block), rows)


def choose_block(rows: int, size: int) -> int:
    """Return how many of a number of rows of noise, each with `size` values, are generated at once.

    The rows are the same for every block. Sums over them differ by rounding between a CPU and other devices.
    """
    numbers = CPU_BLOCK_NUMBERS if jax.default_backend() == "cpu" else ACCELERATOR_BLOCK_NUMBERS
    return find_largest_divisor(rows, max(numbers // max(size, 1), MIN_BLOCK))


def find_largest_divisor(rows: int, most: int) -> int:
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


def hash_words(words: UInt32[Array, "2"], counter: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """Return random words: each counter value, combined with two words of a key, passes an integer hash twice."""
    first, second = words
    return mix_bits(mix_bits(counter ^ first) + second)


def _hash_row(words: UInt32[Array, "2"], row: UInt32[Array, ""]) -> UInt32[Array, "2"]:
    """Return the words of a row's hash: the second one is different for each row."""
    first, second = words
    return jnp.stack([first ^ mix_bits(row ^ second), second + mix_bits(mix_bits(row) ^ first)])


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
