"""A replay of what each environment did in a row, which gives sequences with the memory before them."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from evorl import tree
from evorl.errors import OptionError, require, require_int
from evorl.replay.prioritized import Priorities, PrioritizedReplay
from evorl.replay.row_layout import RowLayout
from evorl.types import Memory, ReplayBuffer, Sample, Transition


@struct.dataclass
class SequenceBuffer:
    """The newest steps of each of n environments, in a ring of its own.

    Sequences of so many steps begin at every multiple of the stride, where the memory before the step is kept too, and
    may run over the ends of episodes. Where an environment goes on elsewhere, as after a restart, its last step
    becomes a truncation, which its true successor values.
    """

    tables: dict[str, Shaped[Array, "all_steps width"]]  # by dtype, those of an environment in a row
    memory: Memory  # before each step at which a sequence begins, leaves [n beginnings, ...]
    position: Int[Array, " n"]  # where the next step of each environment goes
    num_filled: Int[Array, " n"]  # how many it holds
    size: Int[Array, ""]  # how many sequences
    row: RowLayout = struct.field(pytree_node=False)
    settings: "SequenceReplay" = struct.field(pytree_node=False)

    @property
    def num_envs(self) -> int:
        """n."""
        return tree.leading_size(self.position)

    @property
    def steps_per_env(self) -> int:
        """Of each environment, for which there is room."""
        return tree.leading_size(self.tables) // self.num_envs

    @property
    def starts_per_env(self) -> int:
        """Of each environment, at which a sequence may begin."""
        return self.steps_per_env // self.settings.stride

    def find_complete_sequences(self) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
        """Of each environment, the youngest beginning of a sequence that is all there, in strides before the newest
        one; and how many there are from it on back.
        """
        reach, stride = self.settings.sequence_length, self.settings.stride
        newest = (self.position - 1) % stride  # steps since the newest beginning
        first = jnp.maximum(-((newest - (reach - 1)) // stride), 0)
        last = (self.num_filled - 1 - newest) // stride
        return first, jnp.maximum(last - first + 1, 0)

    def start_index(self, env_index: Int[Array, "..."], back: Int[Array, "..."]) -> Int[Array, "..."]:
        """Return the index, among all, of the beginning `back` strides before the newest one of the environment."""
        newest = (self.position[env_index] - 1) % self.steps_per_env // self.settings.stride
        return env_index * self.starts_per_env + (newest - back) % self.starts_per_env

    @jax.named_scope("replay")
    def add(self, rows: Transition, mask: Bool[Array, "steps n"]) -> "SequenceBuffer":
        """Appends the steps, leaves [steps, n, ...], where mask, of each environment up to the first not finite."""
        return self.add_with_counts(rows, mask)[0]

    def add_with_counts(
        self, rows: Transition, mask: Bool[Array, "steps n"]
    ) -> tuple["SequenceBuffer", Int[Array, " n"]]:
        """The replay with the steps, and how many of each environment."""
        chunk, n = mask.shape
        if chunk + self.settings.sequence_length > self.steps_per_env:
            needed = self.num_envs * (chunk + self.settings.sequence_length + self.settings.stride)
            given = f"capacity={self.num_envs * self.steps_per_env}"
            raise OptionError(f"{given}: must hold {needed} steps, a sequence and a chunk of each environment")
        memory, packed = tree.merge_axes(rows.memory), self.row.pack(tree.merge_axes(replace(rows, memory=None)))
        mask &= jnp.cumsum(mask & ~tree.find_finite_rows((packed, memory)).reshape(chunk, n), axis=0) == 0
        count, env_index = mask.sum(0), jnp.arange(n)
        there = self.truncate_last_steps(tree.index(rows.obs, (mask.argmax(0), env_index)), count > 0)
        outside = tree.leading_size(self.tables)
        place = (self.position + jnp.cumsum(mask, axis=0) - 1) % self.steps_per_env
        nowhere = outside + jnp.arange(mask.size).reshape(chunk, n)  # distinct, so that the indices stay unique
        target = jnp.where(mask, env_index * self.steps_per_env + place, nowhere).reshape(-1)
        tables = {
            dtype: table.at[target].set(packed[dtype], mode="drop", unique_indices=True)
            for dtype, table in there.items()
        }
        begins = (mask & (place % self.settings.stride == 0)).reshape(-1)
        index = jnp.where(begins, target // self.settings.stride, outside)
        memory = jax.tree.map(lambda kept, new: kept.at[index].set(new, mode="drop"), self.memory, memory)
        position = ((self.position + count) % self.steps_per_env).astype(jnp.int32)
        filled = jnp.minimum(self.num_filled + count, self.steps_per_env).astype(jnp.int32)
        after = replace(self, tables=tables, memory=memory, position=position, num_filled=filled)
        return replace(after, size=after.find_complete_sequences()[1].sum().astype(jnp.int32)), count

    def truncate_last_steps(self, obs: Any, goes_on: Bool[Array, " n"]) -> dict[str, Array]:
        """The tables, with the last step of an environment truncated where it goes on from another observation."""
        env_index = jnp.arange(self.num_envs)
        index = env_index * self.steps_per_env + (self.position - 1) % self.steps_per_env
        last: Transition = self.row.unpack(tree.index(self.tables, index))
        same = jax.tree.map(lambda a, b: (a == b).reshape(self.num_envs, -1).all(1), last.next_obs, obs)
        elsewhere = goes_on & (self.num_filled > 0) & ~last.is_done & ~jnp.stack(jax.tree.leaves(same)).all(0)
        packed = self.row.pack(replace(last, truncated=last.truncated | elsewhere))
        return {dtype: table.at[index].set(packed[dtype], unique_indices=True) for dtype, table in self.tables.items()}

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        """Sequences drawn uniformly with replacement, to 1 part in 2^32 / size; it must hold some."""
        first, count = self.find_complete_sequences()
        after = jnp.cumsum(count)
        drawn = (jax.random.bits(key, shape) % jnp.maximum(after[-1], 1).astype(jnp.uint32)).astype(jnp.int32)
        env_index = jnp.minimum(jnp.searchsorted(after, drawn, side="right"), self.num_envs - 1)
        return self.gather_sequences(self.start_index(env_index, first[env_index] + drawn - (after - count)[env_index]))

    def gather_sequences(self, index: Int[Array, "*shape"], weight: Any = None) -> Sample:
        """Those from beginnings on."""
        env_index, begin = index // self.starts_per_env, index % self.starts_per_env * self.settings.stride
        steps = jnp.arange(self.settings.sequence_length).reshape(-1, 1)
        each = (
            jnp.expand_dims(env_index, -2) * self.steps_per_env
            + (jnp.expand_dims(begin, -2) + steps) % self.steps_per_env
        )
        rows = self.row.unpack(tree.index(self.tables, each))
        rows = replace(rows, memory=tree.index(self.memory, index), burn_in=self.settings.burn_in)
        return Sample(rows, index, weight)


@struct.dataclass
class PrioritizedSequenceBuffer:
    """Sequences that are drawn by their TD errors."""

    buffer: SequenceBuffer
    priorities: Priorities

    @property
    def size(self) -> Any:
        return self.buffer.size

    @jax.named_scope("replay")
    def add(self, rows: Transition, mask: Bool[Array, "steps n"]) -> "PrioritizedSequenceBuffer":
        kept, count = self.buffer.add_with_counts(rows, mask)
        settings = kept.settings
        env_index, each = jnp.arange(kept.num_envs)[:, None], jnp.arange(len(mask) // settings.stride + 2)
        overwritten = kept.start_index(env_index, each)  # those since the last add, of which none is whole already
        since = (kept.position[:, None] - 1) % settings.stride + each * settings.stride  # steps after each
        priorities = self.priorities.clear(overwritten.reshape(-1), (since < count[:, None]).reshape(-1))
        first, whole = kept.find_complete_sequences()
        back = first[:, None] + each
        age = (kept.position[:, None] - 1) % settings.stride + back * settings.stride
        new = (each < whole[:, None]) & (age - count[:, None] < settings.sequence_length - 1)
        return PrioritizedSequenceBuffer(
            kept, priorities.set_max_priority(kept.start_index(env_index, back).reshape(-1), new.reshape(-1))
        )

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        return self.buffer.gather_sequences(*self.priorities.sample(key, shape, self.size))

    @jax.named_scope("replay")
    def update_priorities(
        self, index: Int[Array, "*shape"], priority: Float[Array, "*shape steps"]
    ) -> "PrioritizedSequenceBuffer":
        """Of each sequence the mix of its largest error and their mean is its priority."""
        errors, mix = jnp.abs(priority), self.buffer.settings.mix
        return replace(
            self, priorities=self.priorities.set_from_errors(index, mix * errors.max(-1) + (1 - mix) * errors.mean(-1))
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
    def has_sequences(self) -> bool:
        return True

    def __post_init__(self) -> None:
        require_int("length", self.length)
        require_int("burn_in", self.burn_in, 0)
        require_int("stride", self.stride)
        require(0 <= self.mix <= 1, "mix", self.mix, "must be from 0 to 1")
        _ = self.priority_settings

    @property
    def priority_settings(self) -> PrioritizedReplay:
        """By what sequences are drawn."""
        return PrioritizedReplay(self.exponent, self.correction, correction_steps=2**31 - 1)

    @property
    def sequence_length(self) -> int:
        """Steps of a sequence."""
        return self.burn_in + self.length

    def empty(self, capacity: int, row: PyTree, num_envs: int = 1) -> ReplayBuffer:
        beginnings = capacity // num_envs // self.stride
        steps = beginnings * self.stride
        length = self.sequence_length
        fits = f"must hold a sequence of {length} steps of each of {num_envs} environments, {num_envs * length}"
        require(steps >= self.sequence_length, "capacity", capacity, fits)
        layout = RowLayout.from_row(replace(row, memory=None))
        tables = {dtype: jnp.zeros((num_envs * steps, width), dtype) for dtype, width in layout.widths.items()}
        memory = tree.broadcast(tree.zeros_like(row.memory), num_envs * beginnings)
        none = jnp.zeros(num_envs, jnp.int32)
        kept = SequenceBuffer(tables, memory, none, none, jnp.int32(0), layout, self)
        if not self.exponent:
            return kept
        return PrioritizedSequenceBuffer(kept, Priorities.empty(num_envs * beginnings, self.priority_settings))
