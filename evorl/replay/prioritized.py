"""A replay of the newest rows, which are drawn by how much was to be learned from them."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from evorl import tree
from evorl.errors import require
from evorl.replay.ring import Ring
from evorl.replay.sum_tree import NOWHERE, SumTree
from evorl.types import Sample

FEW = 64  # rows that are forgotten in one turn


@struct.dataclass
class Priorities:
    """By what n places are drawn, and what a draw then weighs."""

    numbers: SumTree  # priorities, to the power of the exponent
    highest: Any  # [] of them so far; 0 before the first
    added: Any  # [] int32, how many so far, at most those over which the correction grows
    settings: "PrioritizedReplay" = struct.field(pytree_node=False)

    @classmethod
    def none(cls, n: int, settings: "PrioritizedReplay") -> "Priorities":
        """Of which no place may be drawn."""
        return cls(SumTree.zeros(n), jnp.float32(0), jnp.int32(0), settings)

    def new(
        self, index: Int[Array, " k"], mask: Bool[Array, " k"], count: Int[Array, ""] | None = None
    ) -> "Priorities":
        """Where mask, places hold what nothing was learned from yet: the highest priority so far is theirs.

        These are `count` rows, by default one for each place.
        """
        rows = jnp.minimum(mask.sum() if count is None else count, self.settings.correction_steps)
        highest = jnp.where(self.highest > 0, self.highest, 1.0)
        numbers = self.numbers.put(jnp.where(mask, index, NOWHERE), jnp.broadcast_to(highest, index.shape))
        added = jnp.minimum(self.added, self.settings.correction_steps - rows) + rows
        return Priorities(numbers, self.highest, added.astype(jnp.int32), self.settings)

    def gone(self, index: Int[Array, " k"], mask: Bool[Array, " k"]) -> "Priorities":
        """Where mask, places hold nothing that may be drawn."""
        return replace(self, numbers=self.numbers.put(jnp.where(mask, index, NOWHERE), jnp.zeros(index.shape)))

    def learned(self, index: Int[Array, "..."], error: Float[Array, "..."]) -> "Priorities":
        """The sizes of the errors at places are their priorities; of what is lost, the least."""
        size = jnp.where(jnp.isfinite(error), jnp.abs(error), 0) + self.settings.least
        numbers = jnp.where(self.numbers.total > 0, size.reshape(-1) ** self.settings.exponent, 0)
        highest = jnp.maximum(self.highest, numbers.max())
        return replace(self, numbers=self.numbers.put(index.reshape(-1), numbers), highest=highest)

    def draw(
        self, key: Array, shape: tuple[int, ...], count: Array
    ) -> tuple[Int[Array, "*shape"], Float[Array, "*shape"]]:
        """Draw places among count of them by their priorities, to 2 parts in 2^23, with weights that correct for that.

        A weight is (n p)^-beta over the highest of the last axis of shape (Schaul et al. 2016, section 3.4).
        """
        h, total = self.settings, self.numbers.total
        beta = h.correction + (1 - h.correction) * self.added / h.correction_steps

        def drawn(*_: Any) -> tuple[Array, Array]:
            index = self.numbers.find(jax.random.uniform(key, shape) * total)
            probability = jnp.maximum(self.numbers.at(index) / total, jnp.finfo(jnp.float32).tiny)
            logarithm = -beta * jnp.log(count * probability)
            return index, jnp.exp(logarithm - logarithm.max(-1, keepdims=True))

        # in a loop of one turn, or else XLA reads again for each use, and copies what is then to be written
        once = tree.any_unbatched(count > 0).astype(jnp.int32)
        return jax.lax.fori_loop(0, once, drawn, (jnp.zeros(shape, jnp.int32), jnp.zeros(shape)))


@struct.dataclass
class PrioritizedRing:
    """The newest rows, as in a ring, with their priorities."""

    ring: Ring
    priorities: Priorities

    @property
    def size(self) -> Any:
        return self.ring.size

    @jax.named_scope("replay")
    def add(self, rows: PyTree, mask: Bool[Array, "..."]) -> "PrioritizedRing":
        ring, target = self.ring.placed(rows, mask)
        return PrioritizedRing(ring, self.priorities.new(target, target < ring.capacity))

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        index, weight = self.priorities.draw(key, shape, self.size)
        return Sample(self.ring.rows(index), index, weight)

    def forget(self, count: Int[Array, ""]) -> "PrioritizedRing":
        """The replay without its `count` oldest rows, of which few are forgotten at a time."""

        def some(i: Array, priorities: Priorities) -> Priorities:
            oldest = i * FEW + jnp.arange(FEW)
            return priorities.gone((self.ring.oldest + oldest) % self.ring.capacity, oldest < count)

        return PrioritizedRing(self.ring.forget(count), tree.repeat(-(-count // FEW), some, self.priorities))

    @jax.named_scope("replay")
    def update(self, index: Int[Array, "..."], priority: Float[Array, "..."]) -> "PrioritizedRing":
        return PrioritizedRing(self.ring, self.priorities.learned(index, priority))


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
    def sequences(self) -> bool:
        return False

    def __post_init__(self) -> None:
        require(self.exponent >= 0, "exponent", self.exponent, "must not be negative")
        require(0 <= self.correction <= 1, "correction", self.correction, "must be from 0 to 1")
        require(
            1 <= self.correction_steps < 2**31, "correction_steps", self.correction_steps, "must be from 1 to 2^31 - 1"
        )
        require(self.least > 0, "least", self.least, "must be positive")

    def empty(self, capacity: int, row: PyTree, num_slots: int = 1) -> PrioritizedRing:
        del num_slots
        ring = Ring.empty(capacity, row)
        return PrioritizedRing(ring, Priorities.none(tree.size(ring.tables), self))
