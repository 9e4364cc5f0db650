"""Checksums of states, which do not depend on how a state is distributed.

Nothing is copied from a GPU to the host.
"""

import math
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from evorl.types import State

BLOCK = 2**16  # words that NumPy processes at once
WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}  # unsigned type for a number of bytes


def compute_checksum(state: State) -> int:
    """Compute a checksum of the bytes of all leaves.

    A leaf contributes the sum of its words, modulo 2^32, each multiplied by an odd number that depends on the
    position of the word. Every change of a single word changes the sum.
    """
    total = 0
    for leaf in jax.tree.leaves(state):
        if leaf.size:
            total = (31 * total + _sum_leaf(leaf)) % 2**64
    return total


def _sum_leaf(leaf: Any) -> int:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    is_on_host = isinstance(leaf, np.ndarray) or (leaf.is_fully_addressable and jax.default_backend() == "cpu")
    if not is_on_host:
        return int(_sum_on_device(leaf))
    flat = np.ascontiguousarray(leaf).reshape(-1)
    words = flat.view(np.dtype(WORDS[flat.itemsize]))
    starts = range(0, words.size, BLOCK)
    return sum(_sum_block(words[at : at + BLOCK], at) for at in starts) % 2**32


def _sum_block(words: np.ndarray, start: int) -> int:
    position = np.arange(start, start + words.size, dtype=np.uint64).astype(np.uint32)
    return int((words.astype(np.uint32) * _choose_factors(position, np)).sum(dtype=np.uint32))


@jax.jit
def _sum_on_device(leaf: Array) -> UInt32[Array, ""]:
    """Return the sum of a leaf. The leaf keeps its shape, so that each device sums its own part."""
    word = WORDS[leaf.dtype.itemsize]
    words = leaf.astype(word) if leaf.dtype == bool else jax.lax.bitcast_convert_type(leaf, word)
    position = jnp.zeros(words.shape, jnp.uint32)
    for axis in range(words.ndim):
        stride = np.uint32(math.prod(words.shape[axis + 1 :]) % 2**32)
        position = position + stride * jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    return (words.astype(jnp.uint32) * _choose_factors(position, jnp)).sum(dtype=jnp.uint32)


def _choose_factors(position: Any, xp: ModuleType) -> Any:
    """Return an odd factor for each position, which looks random."""
    mixed = position * xp.uint32(0x9E3779B1)
    mixed = (mixed ^ (mixed >> xp.uint32(15))) * xp.uint32(0x85EBCA6B)
    return mixed | xp.uint32(1)
