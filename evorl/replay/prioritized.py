"""A replay of the newest rows, which are drawn by how much was to be learned from them."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from evorl import tree
from evorl.errors import require
from evorl.replay.ring import RingBuffer
from evorl.replay.sum_tree import OUT_OF_BOUNDS, SumTree
from evorl.types import Sample

ROWS_PER_DROP = 64  # rows that are forgotten in one turn


@struct.dataclass
class Priorities:
    """By what n places are drawn, and what a draw then weighs."""

    sum_tree: SumTree  # priorities, to the power of the exponent
    max_priority: Float[Array, ""]  # of them so far; 0 before the first
    num_added: Int[Array, ""]  # how many so far, at most those over which the correction grows
    settings: "PrioritizedReplay" = struct.field(pytree_node=False)

    @classmethod
    def empty(cls, n: int, settings: "PrioritizedReplay") -> "Priorities":
        """Of which no place may be drawn."""
        return cls(SumTree.zeros(n), jnp.float32(0), jnp.int32(0), settings)

    def set_max_priority(
        self, index: Int[Array, " k"], mask: Bool[Array, " k"], count: Int[Array, ""] | None = None
    ) -> "Priorities":
        """Where mask, places hold what nothing was learned from yet: the highest priority so far is theirs.

        These are `count` rows, by default one for each place.
        """
        rows = jnp.minimum(mask.sum() if count is None else count, self.settings.correction_steps)
        highest = jnp.where(self.max_priority > 0, self.max_priority, 1.0)
        numbers = self.sum_tree.set_values(
            jnp.where(mask, index, OUT_OF_BOUNDS), jnp.broadcast_to(highest, index.shape)
        )
        added = jnp.minimum(self.num_added, self.settings.correction_steps - rows) + rows
        return Priorities(numbers, self.max_priority, added.astype(jnp.int32), self.settings)

    def clear(self, index: Int[Array, " k"], mask: Bool[Array, " k"]) -> "Priorities":
        """Where mask, places hold nothing that may be drawn."""
        return replace(
            self, sum_tree=self.sum_tree.set_values(jnp.where(mask, index, OUT_OF_BOUNDS), jnp.zeros(index.shape))
        )

    def set_from_errors(self, index: Int[Array, "..."], error: Float[Array, "..."]) -> "Priorities":
        """The sizes of the errors at places are their priorities; of what is lost, the least."""
        size = jnp.where(jnp.isfinite(error), jnp.abs(error), 0) + self.settings.least
        numbers = jnp.where(self.sum_tree.total > 0, size.reshape(-1) ** self.settings.exponent, 0)
        highest = jnp.maximum(self.max_priority, numbers.max())
        return replace(self, sum_tree=self.sum_tree.set_values(index.reshape(-1), numbers), max_priority=highest)

    def sample(
        self, key: Array, shape: tuple[int, ...], count: Array
    ) -> tuple[Int[Array, "*shape"], Float[Array, "*shape"]]:
        """Draw places among count of them by their priorities, to 2 parts in 2^23, with weights that correct for that.

        A weight is (n p)^-beta over the highest of the last axis of shape (Schaul et al. 2016, section 3.4).
        """
        h, total = self.settings, self.sum_tree.total
        beta = h.correction + (1 - h.correction) * self.num_added / h.correction_steps

        def sample_places(*_: Any) -> tuple[Array, Array]:
            index = self.sum_tree.find(jax.random.uniform(key, shape) * total)
            probability = jnp.maximum(self.sum_tree.get_values(index) / total, jnp.finfo(jnp.float32).tiny)
            logarithm = -beta * jnp.log(count * probability)
            return index, jnp.exp(logarithm - logarithm.max(-1, keepdims=True))

        # in a loop of one turn, or else XLA reads again for each use, and copies what is then to be written
        once = tree.any_unbatched(count > 0).astype(jnp.int32)
        return jax.lax.fori_loop(0, once, sample_places, (jnp.zeros(shape, jnp.int32), jnp.zeros(shape)))


@struct.dataclass
class PrioritizedRingBuffer:
    """The newest rows, as in a ring, with their priorities."""

    ring: RingBuffer
    priorities: Priorities

    @property
    def size(self) -> Any:
        return self.ring.size

    @jax.named_scope("replay")
    def add(self, rows: PyTree, mask: Bool[Array, "..."]) -> "PrioritizedRingBuffer":
        ring, target = self.ring.add_with_indices(rows, mask)
        return PrioritizedRingBuffer(ring, self.priorities.set_max_priority(target, target < ring.capacity))

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        index, weight = self.priorities.sample(key, shape, self.size)
        return Sample(self.ring.gather_rows(index), index, weight)

    def drop_oldest(self, count: Int[Array, ""]) -> "PrioritizedRingBuffer":
        """The replay without its `count` oldest rows, of which few are forgotten at a time."""

        def clear_rows(i: Array, priorities: Priorities) -> Priorities:
            oldest = i * ROWS_PER_DROP + jnp.arange(ROWS_PER_DROP)
            return priorities.clear((self.ring.oldest_index + oldest) % self.ring.capacity, oldest < count)

        return PrioritizedRingBuffer(
            self.ring.drop_oldest(count), tree.masked_fori_loop(-(-count // ROWS_PER_DROP), clear_rows, self.priorities)
        )

    @jax.named_scope("replay")
    def update_priorities(self, index: Int[Array, "..."], priority: Float[Array, "..."]) -> "PrioritizedRingBuffer":
        return PrioritizedRingBuffer(self.ring, self.priorities.set_from_errors(index, priority))


@dataclass(frozen=True)
class PrioritizedReplay:
    """A ring of rows that are drawn by their TD error to the power of the exponent (Schaul et al. 2016,
    arXiv:1511.05952).

    Weights correct for that to the power of the correction, which grows to 1 while correction_steps rows are added.
    """

    exponent: float = 0.6
    correction: float = 0.4
    correction_steps: int = 1_000_000
    least: float = 1e-6  # what is added to every error, so that none is never drawn again

    @property
    def has_sequences(self) -> bool:
        return False

    def __post_init__(self) -> None:
        require(self.exponent >= 0, "exponent", self.exponent, "must not be negative")
        require(0 <= self.correction <= 1, "correction", self.correction, "must be from 0 to 1")
        require(
            1 <= self.correction_steps < 2**31, "correction_steps", self.correction_steps, "must be from 1 to 2^31 - 1"
        )
        require(self.least > 0, "least", self.least, "must be positive")

    def empty(self, capacity: int, row: PyTree, num_envs: int = 1) -> PrioritizedRingBuffer:
        del num_envs
        ring = RingBuffer.empty(capacity, row)
        return PrioritizedRingBuffer(ring, Priorities.empty(tree.leading_size(ring.tables), self))
