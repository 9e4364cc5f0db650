"""A replay of what each slot did in a row, which gives sequences with the memory before them."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from evorl import tree
from evorl.errors import OptionError, require, require_whole
from evorl.replay.prioritized import Priorities, PrioritizedReplay
from evorl.replay.row import Row
from evorl.types import Replay, Sample, Transition


@struct.dataclass
class Sequences:
    """The newest steps of each of n slots, in a ring of its own.

    Sequences of so many steps begin at every multiple of the stride, where the memory before the step is kept too, and
    may run over the ends of episodes. Where a slot goes on elsewhere, as after a restart, its last step becomes a
    truncation, which its true successor values.
    """

    tables: Any  # dtype -> [n steps, width]
    memory: Any  # before each step at which a sequence begins, leaves [n beginnings, ...]
    position: Any  # [n] int32, where the next step of each slot goes
    filled: Any  # [n] int32, how many it holds
    size: Any  # [] int32, how many sequences
    row: Row = struct.field(pytree_node=False)
    settings: "SequenceReplay" = struct.field(pytree_node=False)

    @property
    def num_slots(self) -> int:
        """n."""
        return tree.size(self.position)

    @property
    def steps(self) -> int:
        """Of each slot, for which there is room."""
        return tree.size(self.tables) // self.num_slots

    @property
    def beginnings(self) -> int:
        """Of each slot, at which a sequence may begin."""
        return self.steps // self.settings.stride

    def whole(self) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
        """Of each slot, the youngest beginning of a sequence that is all there, in strides before the newest one; and
        how many there are from it on back.
        """
        reach, stride = self.settings.total, self.settings.stride
        newest = (self.position - 1) % stride  # steps since the newest beginning
        first = jnp.maximum(-((newest - (reach - 1)) // stride), 0)
        last = (self.filled - 1 - newest) // stride
        return first, jnp.maximum(last - first + 1, 0)

    def beginning(self, slot: Int[Array, "..."], back: Int[Array, "..."]) -> Int[Array, "..."]:
        """The index, among those of all slots, of the beginning so many strides before the newest one of a slot."""
        newest = (self.position[slot] - 1) % self.steps // self.settings.stride
        return slot * self.beginnings + (newest - back) % self.beginnings

    @jax.named_scope("replay")
    def add(self, rows: Transition, mask: Bool[Array, "steps n"]) -> "Sequences":
        """Appends the steps, leaves [steps, n, ...], of each slot where mask, up to the first that is not finite."""
        return self.advanced(rows, mask)[0]

    def advanced(self, rows: Transition, mask: Bool[Array, "steps n"]) -> tuple["Sequences", Int[Array, " n"]]:
        """The replay with the steps, and how many of each slot."""
        chunk, n = mask.shape
        if chunk + self.settings.total > self.steps:
            needed = self.num_slots * (chunk + self.settings.total + self.settings.stride)
            raise OptionError(
                f"capacity={self.num_slots * self.steps}: must hold {needed} steps, a sequence and a chunk of each slot"
            )
        memory, packed = tree.merge_axes(rows.memory), self.row.pack(tree.merge_axes(replace(rows, memory=())))
        mask &= jnp.cumsum(mask & ~tree.finite_rows((packed, memory)).reshape(chunk, n), axis=0) == 0
        count, slot = mask.sum(0), jnp.arange(n)
        there = self.parted(tree.index(rows.obs, (mask.argmax(0), slot)), count > 0)
        outside = tree.size(self.tables)
        place = (self.position + jnp.cumsum(mask, axis=0) - 1) % self.steps
        nowhere = outside + jnp.arange(mask.size).reshape(chunk, n)  # distinct, so that the indices stay unique
        target = jnp.where(mask, slot * self.steps + place, nowhere).reshape(-1)
        tables = {
            dtype: table.at[target].set(packed[dtype], mode="drop", unique_indices=True)
            for dtype, table in there.items()
        }
        begins = (mask & (place % self.settings.stride == 0)).reshape(-1)
        index = jnp.where(begins, target // self.settings.stride, outside)
        memory = jax.tree.map(lambda kept, new: kept.at[index].set(new, mode="drop"), self.memory, memory)
        position = ((self.position + count) % self.steps).astype(jnp.int32)
        filled = jnp.minimum(self.filled + count, self.steps).astype(jnp.int32)
        after = replace(self, tables=tables, memory=memory, position=position, filled=filled)
        return replace(after, size=after.whole()[1].sum().astype(jnp.int32)), count

    def parted(self, obs: Any, goes_on: Bool[Array, " n"]) -> dict[str, Array]:
        """The tables, in which the last step of a slot is truncated where it goes on from another observation."""
        slot = jnp.arange(self.num_slots)
        index = slot * self.steps + (self.position - 1) % self.steps
        last: Transition = self.row.unpack(tree.index(self.tables, index))
        same = jax.tree.map(lambda a, b: (a == b).reshape(self.num_slots, -1).all(1), last.next_obs, obs)
        elsewhere = goes_on & (self.filled > 0) & ~last.ended & ~jnp.stack(jax.tree.leaves(same)).all(0)
        packed = self.row.pack(replace(last, truncated=last.truncated | elsewhere))
        return {dtype: table.at[index].set(packed[dtype], unique_indices=True) for dtype, table in self.tables.items()}

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        """Sequences drawn uniformly with replacement, to 1 part in 2^32 / size; it must hold some."""
        first, count = self.whole()
        after = jnp.cumsum(count)
        drawn = (jax.random.bits(key, shape) % jnp.maximum(after[-1], 1).astype(jnp.uint32)).astype(jnp.int32)
        slot = jnp.minimum(jnp.searchsorted(after, drawn, side="right"), self.num_slots - 1)
        return self.sequences(self.beginning(slot, first[slot] + drawn - (after - count)[slot]))

    def sequences(self, index: Int[Array, "*shape"], weight: Any = ()) -> Sample:
        """Those from beginnings on."""
        slot, begin = index // self.beginnings, index % self.beginnings * self.settings.stride
        steps = jnp.arange(self.settings.total).reshape(-1, 1)
        each = jnp.expand_dims(slot, -2) * self.steps + (jnp.expand_dims(begin, -2) + steps) % self.steps
        rows = self.row.unpack(tree.index(self.tables, each))
        rows = replace(rows, memory=tree.index(self.memory, index), burn_in=self.settings.burn_in)
        return Sample(rows, index, weight)


@struct.dataclass
class PrioritizedSequences:
    """Sequences that are drawn by their TD errors."""

    kept: Sequences
    priorities: Priorities

    @property
    def size(self) -> Any:
        return self.kept.size

    @jax.named_scope("replay")
    def add(self, rows: Transition, mask: Bool[Array, "steps n"]) -> "PrioritizedSequences":
        kept, count = self.kept.advanced(rows, mask)
        settings = kept.settings
        slot, each = jnp.arange(kept.num_slots)[:, None], jnp.arange(len(mask) // settings.stride + 2)
        overwritten = kept.beginning(slot, each)  # those since the last add, of which none is whole already
        since = (kept.position[:, None] - 1) % settings.stride + each * settings.stride  # steps after each
        priorities = self.priorities.gone(overwritten.reshape(-1), (since < count[:, None]).reshape(-1))
        first, whole = kept.whole()
        back = first[:, None] + each
        age = (kept.position[:, None] - 1) % settings.stride + back * settings.stride
        new = (each < whole[:, None]) & (age - count[:, None] < settings.total - 1)
        return PrioritizedSequences(kept, priorities.new(kept.beginning(slot, back).reshape(-1), new.reshape(-1)))

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        return self.kept.sequences(*self.priorities.draw(key, shape, self.size))

    @jax.named_scope("replay")
    def update(self, index: Int[Array, "*shape"], priority: Float[Array, "*shape steps"]) -> "PrioritizedSequences":
        """Of each sequence the mix of its largest error and their mean is its priority."""
        errors, mix = jnp.abs(priority), self.kept.settings.mix
        return replace(
            self, priorities=self.priorities.learned(index, mix * errors.max(-1) + (1 - mix) * errors.mean(-1))
        )


@dataclass(frozen=True)
class SequenceReplay:
    """Sequences of `length` steps to learn from after burn_in that only warm the memory, one every stride steps.

    They are drawn by priority, corrected by a constant power of it, or uniformly where the exponent is 0 (R2D2:
    Kapturowski et al. 2019, section 2.3).
    """

    length: int = 80
    burn_in: int = 40
    stride: int = 40
    exponent: float = 0.9
    correction: float = 0.6
    mix: float = 0.9  # of the largest TD error of a sequence with their mean, as its priority

    @property
    def sequences(self) -> bool:
        return True

    def __post_init__(self) -> None:
        require_whole("length", self.length)
        require_whole("burn_in", self.burn_in, 0)
        require_whole("stride", self.stride)
        require(0 <= self.mix <= 1, "mix", self.mix, "must be from 0 to 1")
        _ = self.priorities

    @property
    def priorities(self) -> PrioritizedReplay:
        """By what sequences are drawn."""
        return PrioritizedReplay(self.exponent, self.correction, correction_steps=2**31 - 1)

    @property
    def total(self) -> int:
        """Steps of a sequence."""
        return self.burn_in + self.length

    def empty(self, capacity: int, row: PyTree, num_slots: int = 1) -> Replay:
        beginnings = capacity // num_slots // self.stride
        steps = beginnings * self.stride
        fits = f"must hold a sequence of {self.total} steps of each of {num_slots} slots, {num_slots * self.total}"
        require(steps >= self.total, "capacity", capacity, fits)
        layout = Row.of(replace(row, memory=()))
        tables = {dtype: jnp.zeros((num_slots * steps, width), dtype) for dtype, width in layout.widths.items()}
        memory = tree.broadcast(tree.zeros(row.memory), num_slots * beginnings)
        none = jnp.zeros(num_slots, jnp.int32)
        kept = Sequences(tables, memory, none, none, jnp.int32(0), layout, self)
        if not self.exponent:
            return kept
        return PrioritizedSequences(kept, Priorities.none(num_slots * beginnings, self.priorities))
