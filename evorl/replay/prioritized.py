"""Prioritized replay: a ring buffer of the newest rows, sampled by their TD errors."""

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

ROWS_PER_DROP = 64  # rows that are cleared in one iteration


@struct.dataclass
class Priorities:
    """Priorities of n indices, and the importance-sampling weights of samples."""

    sum_tree: SumTree  # priorities to the power alpha
    max_priority: Float[Array, ""]  # highest entry of the tree so far; 1 before the first
    num_added: Int[Array, ""]  # number of added rows, at most beta_steps
    settings: "PrioritizedReplay" = struct.field(pytree_node=False)

    @classmethod
    def empty(cls, n: int, settings: "PrioritizedReplay") -> "Priorities":
        """Return priorities of 0 for n indices, so that none can be sampled."""
        return cls(SumTree.zeros(n), jnp.float32(1), jnp.int32(0), settings)

    def set_max_priority(
        self, index: Int[Array, " k"], mask: Bool[Array, " k"], count: Int[Array, ""] | None = None
    ) -> "Priorities":
        """Set the highest priority so far at the indices that are valid by the mask, which hold new rows.

        `count` is the number of new rows, by default the number of valid indices.
        """
        rows = jnp.minimum(mask.sum() if count is None else count, self.settings.beta_steps)
        numbers = self.sum_tree.set_values(
            jnp.where(mask, index, OUT_OF_BOUNDS), jnp.broadcast_to(self.max_priority, index.shape)
        )
        added = jnp.minimum(self.num_added, self.settings.beta_steps - rows) + rows
        return Priorities(numbers, self.max_priority, added.astype(jnp.int32), self.settings)

    def clear(self, index: Int[Array, " k"], mask: Bool[Array, " k"]) -> "Priorities":
        """Set the priority to 0 at the indices that are valid by the mask, so that they are not sampled."""
        return replace(
            self, sum_tree=self.sum_tree.set_values(jnp.where(mask, index, OUT_OF_BOUNDS), jnp.zeros(index.shape))
        )

    def set_from_errors(self, index: Int[Array, "..."], error: Float[Array, "..."]) -> "Priorities":
        """Set the priorities at the given indices to the absolute errors plus `priority_eps`.

        An error that is not finite counts as 0.
        """
        size = jnp.where(jnp.isfinite(error), jnp.abs(error), 0) + self.settings.priority_eps
        numbers = jnp.where(self.sum_tree.total > 0, size.reshape(-1) ** self.settings.alpha, 0)
        highest = jnp.maximum(self.max_priority, numbers.max())
        return replace(self, sum_tree=self.sum_tree.set_values(index.reshape(-1), numbers), max_priority=highest)

    def sample(
        self, key: Array, shape: tuple[int, ...], count: Array
    ) -> tuple[Int[Array, "*shape"], Float[Array, "*shape"]]:
        """Sample indices by priority, and return them with their importance-sampling weights.

        A weight is (count * p)^-beta, divided by the largest one along the last axis of `shape` (Schaul et
        al. 2016, section 3.4). Probabilities are accurate to 2 parts in 2^23.
        """
        h, total = self.settings, self.sum_tree.total
        beta = h.beta + (1 - h.beta) * self.num_added / h.beta_steps

        def sample_places(*_: Any) -> tuple[Array, Array]:
            index = self.sum_tree.find(jax.random.uniform(key, shape) * total)
            probability = jnp.maximum(self.sum_tree.get_values(index) / total, jnp.finfo(jnp.float32).tiny)
            logarithm = -beta * jnp.log(count * probability)
            return index, jnp.exp(logarithm - logarithm.max(-1, keepdims=True))

        # in a loop of one iteration; else XLA repeats the reads for each use and copies the tree before a write
        once = tree.any_unbatched(count > 0).astype(jnp.int32)
        return jax.lax.fori_loop(0, once, sample_places, (jnp.zeros(shape, jnp.int32), jnp.zeros(shape)))


@struct.dataclass
class PrioritizedRingBuffer:
    """Ring buffer of the newest rows with their priorities."""

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
        """Return the buffer without its `count` oldest rows, whose priorities are cleared in blocks."""

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
    """Prioritized experience replay: rows are sampled with probability proportional to priority^alpha.

    The priority of a row is its absolute TD error. Importance-sampling weights correct the bias, to the power
    beta, which grows linearly from its initial value to 1.

    Args:
        alpha: Exponent of the priorities; 0 samples uniformly.
        beta: Initial exponent of the importance-sampling weights.
        beta_steps: Number of added rows after which beta is 1.
        priority_eps: Constant that is added to each absolute error, so that no row has priority 0.

    Source: Schaul et al. 2016, arXiv:1511.05952.
    """

    alpha: float = 0.6
    beta: float = 0.4
    beta_steps: int = 1_000_000
    priority_eps: float = 1e-6

    @property
    def has_sequences(self) -> bool:
        return False

    def __post_init__(self) -> None:
        require(self.alpha >= 0, "alpha", self.alpha, "must not be negative")
        require(0 <= self.beta <= 1, "beta", self.beta, "must be from 0 to 1")
        require(1 <= self.beta_steps < 2**31, "beta_steps", self.beta_steps, "must be from 1 to 2^31 - 1")
        require(self.priority_eps > 0, "priority_eps", self.priority_eps, "must be positive")

    def empty(self, capacity: int, row: PyTree, num_envs: int = 1) -> PrioritizedRingBuffer:
        del num_envs
        ring = RingBuffer.empty(capacity, row)
        return PrioritizedRingBuffer(ring, Priorities.empty(tree.leading_size(ring.tables), self))
