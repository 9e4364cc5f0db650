"""Standard normal numbers for populations, from one of three sources."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Float, Int, UInt32

from evorl.errors import require, unknown
from evorl.types import Key

SOURCES = ("exact", "hash", "table")
BLOCK = 8  # rows that are drawn at once


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
            raise unknown("source", self.source, SOURCES)
        require(1 <= self.table_size < 2**31, "table_size", self.table_size, "must be from 1 to 2147483647")

    def init(self, key: Key) -> Any:
        """The table [table_size], or nothing."""
        return normal(key, (self.table_size,)) if self.source == "table" else ()

    def draw(self, table: Any, key: Key, n: int, size: int) -> Float[Array, "n size"]:
        """n rows of `size` numbers, a few at a time: out of a loop XLA does not compute them once for each use."""
        block = next(rows for rows in range(min(BLOCK, n), 0, -1) if n % rows == 0)
        if self.source == "table":
            require(
                self.table_size > size, "table_size", self.table_size, f"must exceed the {size} numbers of a member"
            )
            starts = jax.random.randint(key, (n // block, block), 0, self.table_size - size + 1)
            some = jax.vmap(lambda start: jax.lax.dynamic_slice(table, (start,), (size,)))
            return jax.lax.map(some, starts).reshape(n, size)
        words = threefry if self.source == "exact" else hashed
        counters = np.uint32(block * size) * jnp.arange(n // block, dtype=np.uint32)
        return jax.lax.map(lambda first: normal(key, (block, size), words, first), counters).reshape(n, size)


def threefry(key: Key, counter: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """Random words, twice as many from one block as jax.random.bits takes."""
    return threefry_2x32(jax.random.bits(key, (2,), np.uint32), counter)


def hashed(key: Key, counter: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """Random words: the counter, and two words of the key, through an integer hash twice."""
    first, second = jax.random.bits(key, (2,), np.uint32)
    return mixed(mixed(counter ^ first) + second)


def mixed(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """A bijection of words in which every bit of x moves half of the others (Wellons 2018, "lowbias32")."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def integers(key: Key, shape: tuple[int, ...], n: int) -> Int[Array, "*shape"]:
    """Whole numbers from 0 to n - 1, for n far below 2^23; cheaper to compile and to draw than jax.random's."""
    return jnp.minimum((jax.random.uniform(key, shape) * n).astype(np.int32), n - 1)


def normal(key: Key, shape: tuple[int, ...], words: Any = threefry, first: Any = 0) -> Float[Array, "*shape"]:
    """Standard normal numbers by the inverse of their distribution function, at 2^23 places; first is the counter's."""
    counter = jax.lax.iota(np.uint32, math.prod(shape)) + jnp.uint32(first)
    uniform = (words(key, counter).reshape(shape) >> 9).astype(np.float32) * np.float32(2**-22)
    uniform = uniform - np.float32(1 - 2**-23)  # in (-1, 1), as many below 0 as above
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)
