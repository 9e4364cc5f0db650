"""Standard normal numbers for populations, from one of three sources."""

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
        """n rows of `size` numbers."""
        if self.source != "table":
            return normal(key, (n, size), threefry if self.source == "exact" else hashed)
        require(self.table_size > size, "table_size", self.table_size, f"must exceed the {size} numbers of a member")
        first = jax.random.randint(key, (n,), 0, self.table_size - size + 1)
        return jax.vmap(lambda i: jax.lax.dynamic_slice(table, (i,), (size,)))(first)


def threefry(key: Key, count: int) -> UInt32[Array, " count"]:
    """Random words, twice as many from one block as jax.random.bits takes."""
    return threefry_2x32(jax.random.bits(key, (2,), np.uint32), jax.lax.iota(np.uint32, count))


def hashed(key: Key, count: int) -> UInt32[Array, " count"]:
    """Random words: the counter, and two words of the key, through an integer hash twice."""
    first, second = jax.random.bits(key, (2,), np.uint32)
    return mixed(mixed(jax.lax.iota(np.uint32, count) ^ first) + second)


def mixed(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """A bijection of words in which every bit of x moves half of the others (Wellons 2018, "lowbias32")."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def integers(key: Key, shape: tuple[int, ...], n: int) -> Int[Array, "*shape"]:
    """Whole numbers from 0 to n - 1, for n far below 2^23; cheaper to compile and to draw than jax.random's."""
    return jnp.minimum((jax.random.uniform(key, shape) * n).astype(np.int32), n - 1)


def normal(key: Key, shape: tuple[int, ...], words: Any = threefry) -> Float[Array, "*shape"]:
    """Standard normal numbers by the inverse of their distribution function, at 2^23 places."""
    bits = words(key, int(np.prod(shape))).reshape(shape)
    uniform = (bits >> 9).astype(np.float32) * np.float32(2**-22) - np.float32(1 - 2**-23)  # symmetric in (-1, 1)
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)
