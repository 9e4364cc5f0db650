"""Sum tree, to sample indices with probabilities proportional to given numbers."""

from itertools import accumulate

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

BRANCHES = 16
OUT_OF_BOUNDS = 2**30  # index of a number that is not set


@struct.dataclass
class SumTree:
    """Sum tree over non-negative numbers, with 16 children per node.

    Each sum is recomputed from its children, so that rounding errors do not accumulate.
    """

    levels: tuple[Float[Array, " numbers"], ...]  # [16 * nodes] each, leaves first

    @classmethod
    def zeros(cls, n: int) -> "SumTree":
        """Return a tree of n zeros."""
        levels, groups = [], n
        while not levels or groups > 1:
            groups = -(-groups // BRANCHES)
            levels.append(jnp.zeros(groups * BRANCHES))
        return cls(tuple(levels))

    @classmethod
    def from_numbers(cls, numbers: Float[Array, " n"]) -> "SumTree":
        """Return a tree of the given numbers."""
        levels = [_pad_to_branches(numbers)]
        while len(levels[-1]) > BRANCHES:
            levels.append(_pad_to_branches(levels[-1].reshape(-1, BRANCHES).sum(-1)))
        return cls(tuple(levels))

    @property
    def total(self) -> Float[Array, ""]:
        """Return the sum of all numbers."""
        return self.levels[-1].sum()

    def get_values(self, index: Int[Array, "..."]) -> Float[Array, "..."]:
        """Return the numbers at the given indices."""
        return self.levels[0][index]

    def set_values(self, index: Int[Array, " k"], numbers: Float[Array, " k"]) -> "SumTree":
        """Return the tree with new numbers at the given indices; skip those at OUT_OF_BOUNDS.

        If an index occurs several times, one of its numbers is used.
        """
        levels = [self.levels[0].at[index].set(numbers, mode="drop")]
        for above in self.levels[1:]:
            index = index // BRANCHES
            sums = levels[-1].reshape(-1, BRANCHES).at[index].get(mode="clip").sum(-1)
            levels.append(above.at[index].set(sums, mode="drop"))
        return SumTree(tuple(levels))

    def find(self, mass: Float[Array, "*shape"]) -> Int[Array, "*shape"]:
        """Return the first index at which the cumulative sum exceeds `mass`, which must be in [0, total).

        The index of a number that is 0 is never returned.
        """
        index = jnp.zeros(mass.shape, jnp.int32)
        for level in reversed(self.levels):
            numbers = level.reshape(-1, BRANCHES)[index]
            sums = list(accumulate(numbers[..., i] for i in range(BRANCHES)))  # compiles to one loop over the shape
            child, below = jnp.int32(0), jnp.float32(0)
            for each in sums:
                passed = (each <= mass) & (each < sums[-1])  # so that rounding never leads past the last nonzero number
                child, below = child + passed, jnp.where(passed, each, below)
            mass, index = mass - below, index * BRANCHES + child
        return index


def _pad_to_branches(numbers: Float[Array, " n"]) -> Float[Array, " m"]:
    """Pad numbers with zeros to a multiple of BRANCHES."""
    return jnp.pad(numbers, (0, -len(numbers) % BRANCHES))
