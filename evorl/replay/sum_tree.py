"""Numbers that are drawn by their size."""

from itertools import accumulate

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

BRANCHES = 16
OUT_OF_BOUNDS = 2**30  # the index of a number that is not to be set


@struct.dataclass
class SumTree:
    """Numbers of 0 or more in groups of 16, the sums of the groups in groups of 16, and so on up to one group.

    Each sum is computed from what it is the sum of, so that it never drifts.
    """

    levels: tuple[Float[Array, " numbers"], ...]  # [16 groups] each, the numbers first

    @classmethod
    def zeros(cls, n: int) -> "SumTree":
        """For n numbers."""
        levels, groups = [], n
        while not levels or groups > 1:
            groups = -(-groups // BRANCHES)
            levels.append(jnp.zeros(groups * BRANCHES))
        return cls(tuple(levels))

    @classmethod
    def from_numbers(cls, numbers: Float[Array, " n"]) -> "SumTree":
        """Of these numbers."""
        levels = [_pad_to_branches(numbers)]
        while len(levels[-1]) > BRANCHES:
            levels.append(_pad_to_branches(levels[-1].reshape(-1, BRANCHES).sum(-1)))
        return cls(tuple(levels))

    @property
    def total(self) -> Float[Array, ""]:
        """The sum of all numbers."""
        return self.levels[-1].sum()

    def get_values(self, index: Int[Array, "..."]) -> Float[Array, "..."]:
        """The numbers at places."""
        return self.levels[0][index]

    def set_values(self, index: Int[Array, " k"], numbers: Float[Array, " k"]) -> "SumTree":
        """The tree with other numbers at places; of several for one place one counts, and none at OUT_OF_BOUNDS."""
        levels = [self.levels[0].at[index].set(numbers, mode="drop")]
        for above in self.levels[1:]:
            index = index // BRANCHES
            sums = levels[-1].reshape(-1, BRANCHES).at[index].get(mode="clip").sum(-1)
            levels.append(above.at[index].set(sums, mode="drop"))
        return SumTree(tuple(levels))

    def find(self, mass: Float[Array, "*shape"]) -> Int[Array, "*shape"]:
        """The place up to which the numbers sum to more than mass, which is from 0 to below the total; never of a 0."""
        index = jnp.zeros(mass.shape, jnp.int32)
        for level in reversed(self.levels):
            numbers = level.reshape(-1, BRANCHES)[index]
            sums = list(accumulate(numbers[..., i] for i in range(BRANCHES)))  # which is one loop over the shape
            child, below = jnp.int32(0), jnp.float32(0)
            for each in sums:
                passed = (each <= mass) & (each < sums[-1])  # so that rounding never leads past the last number
                child, below = child + passed, jnp.where(passed, each, below)
            mass, index = mass - below, index * BRANCHES + child
        return index


def _pad_to_branches(numbers: Float[Array, " n"]) -> Float[Array, " m"]:
    """With zeros up to a multiple of the branches."""
    return jnp.pad(numbers, (0, -len(numbers) % BRANCHES))
