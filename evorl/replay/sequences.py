"""Sequence replay: stores the consecutive steps of each environment and samples sequences of them."""

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
    """Replay buffer with a ring of the newest steps of each of n environments.

    Sequences begin at every multiple of the stride, where the recurrent state before the step is also stored.
    They may contain the ends of episodes. If the next observation of an environment is not the successor of
    its last step, as after a restart, the last step becomes a truncation, whose value is bootstrapped from
    its true successor.
    """

    tables: dict[str, Shaped[Array, "all_steps width"]]  # by dtype; the steps of an environment are consecutive
    memory: Memory  # recurrent state before each start of a sequence, leaves [n starts, ...]
    position: Int[Array, " n"]  # position of the next step of each environment
    num_filled: Int[Array, " n"]  # number of stored steps of each environment
    size: Int[Array, ""]  # number of complete sequences
    row: RowLayout = struct.field(pytree_node=False)
    settings: "SequenceReplay" = struct.field(pytree_node=False)

    @property
    def num_envs(self) -> int:
        """Return the number of environments, n."""
        return tree.leading_size(self.position)

    @property
    def steps_per_env(self) -> int:
        """Return the number of steps that the buffer can hold for each environment."""
        return tree.leading_size(self.tables) // self.num_envs

    @property
    def starts_per_env(self) -> int:
        """Return the number of steps of each environment at which a sequence may begin."""
        return self.steps_per_env // self.settings.stride

    def find_complete_sequences(self) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
        """Return the newest start of a complete sequence, and the number of complete sequences, both of shape [n].

        The start is counted backwards in strides from the newest start of the environment. All starts from it
        backwards, up to this number, are complete.
        """
        reach, stride = self.settings.sequence_length, self.settings.stride
        newest = (self.position - 1) % stride  # steps since the newest start
        first = jnp.maximum(-((newest - (reach - 1)) // stride), 0)
        last = (self.num_filled - 1 - newest) // stride
        return first, jnp.maximum(last - first + 1, 0)

    def start_index(self, env_index: Int[Array, "..."], back: Int[Array, "..."]) -> Int[Array, "..."]:
        """Return the index of the start that lies `back` strides before the newest one of an environment.

        The index counts the starts of all environments.
        """
        newest = (self.position[env_index] - 1) % self.steps_per_env // self.settings.stride
        return env_index * self.starts_per_env + (newest - back) % self.starts_per_env

    @jax.named_scope("replay")
    def add(self, rows: Transition, mask: Bool[Array, "steps n"]) -> "SequenceBuffer":
        """Append the steps, leaves [steps, n, ...], that are valid by the mask.

        The steps of an environment from its first non-finite one on are dropped.
        """
        return self.add_with_counts(rows, mask)[0]

    def add_with_counts(
        self, rows: Transition, mask: Bool[Array, "steps n"]
    ) -> tuple["SequenceBuffer", Int[Array, " n"]]:
        """Return the buffer after `add`, and the number of steps that were added for each environment."""
        chunk, n = mask.shape
        if chunk + self.settings.sequence_length > self.steps_per_env:
            needed = self.num_envs * (chunk + self.settings.sequence_length + self.settings.stride)
            given = f"capacity={self.num_envs * self.steps_per_env}"
            raise OptionError(f"{given}: must be at least {needed}, for a sequence and a chunk of each environment")
        memory, packed = tree.merge_axes(rows.memory), self.row.pack(tree.merge_axes(replace(rows, memory=None)))
        mask &= jnp.cumsum(mask & ~tree.find_finite_rows((packed, memory)).reshape(chunk, n), axis=0) == 0
        count, env_index = mask.sum(0), jnp.arange(n)
        there = self.truncate_last_steps(tree.index(rows.obs, (mask.argmax(0), env_index)), count > 0)
        outside = tree.leading_size(self.tables)
        place = (self.position + jnp.cumsum(mask, axis=0) - 1) % self.steps_per_env
        nowhere = outside + jnp.arange(mask.size).reshape(chunk, n)  # distinct, as unique indices are required
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
        """Return the tables, with the last step of an environment truncated if `obs` does not continue it.

        An environment is changed only if it gets new steps (`goes_on`) and its last step did not end an
        episode.
        """
        env_index = jnp.arange(self.num_envs)
        index = env_index * self.steps_per_env + (self.position - 1) % self.steps_per_env
        last: Transition = self.row.unpack(tree.index(self.tables, index))
        same = jax.tree.map(lambda a, b: (a == b).reshape(self.num_envs, -1).all(1), last.next_obs, obs)
        elsewhere = goes_on & (self.num_filled > 0) & ~last.is_done & ~jnp.stack(jax.tree.leaves(same)).all(0)
        packed = self.row.pack(replace(last, truncated=last.truncated | elsewhere))
        return {dtype: table.at[index].set(packed[dtype], unique_indices=True) for dtype, table in self.tables.items()}

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        """Sample complete sequences uniformly with replacement; there must be at least one.

        The relative error of the uniform probability is at most size / 2^32.
        """
        first, count = self.find_complete_sequences()
        after = jnp.cumsum(count)
        drawn = (jax.random.bits(key, shape) % jnp.maximum(after[-1], 1).astype(jnp.uint32)).astype(jnp.int32)
        env_index = jnp.minimum(jnp.searchsorted(after, drawn, side="right"), self.num_envs - 1)
        return self.gather_sequences(self.start_index(env_index, first[env_index] + drawn - (after - count)[env_index]))

    def gather_sequences(self, index: Int[Array, "*shape"], weight: Any = None) -> Sample:
        """Return the sequences that begin at the starts with the given indices."""
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
    """Replay buffer that samples sequences by their TD errors."""

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
        overwritten = kept.start_index(env_index, each)  # starts since the last add, whose sequences are incomplete
        since = (kept.position[:, None] - 1) % settings.stride + each * settings.stride  # steps after each start
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
        """Set the priority of each sequence to eta * max + (1 - eta) * mean of its absolute TD errors."""
        errors, eta = jnp.abs(priority), self.buffer.settings.eta
        return replace(
            self, priorities=self.priorities.set_from_errors(index, eta * errors.max(-1) + (1 - eta) * errors.mean(-1))
        )


@dataclass(frozen=True)
class SequenceReplay:
    """Sequence replay for recurrent policies, as in R2D2.

    A sequence consists of burn-in steps, which only update the recurrent state, and of steps to learn from.

    Args:
        length: Number of steps to learn from in a sequence.
        burn_in: Number of burn-in steps before them.
        stride: Number of steps between the starts of two sequences.
        alpha: Exponent of the priorities; 0 samples uniformly.
        beta: Constant exponent of the importance-sampling weights.
        eta: Weight of the maximum of the absolute TD errors of a sequence, against 1 - eta of their mean, in
            its priority.

    Source: Kapturowski et al. 2019, section 2.3.
    """

    length: int = 80
    burn_in: int = 40
    stride: int = 40
    alpha: float = 0.9
    beta: float = 0.6
    eta: float = 0.9

    @property
    def has_sequences(self) -> bool:
        return True

    def __post_init__(self) -> None:
        require_int("length", self.length)
        require_int("burn_in", self.burn_in, 0)
        require_int("stride", self.stride)
        require(0 <= self.eta <= 1, "eta", self.eta, "must be from 0 to 1")
        _ = self.priority_settings

    @property
    def priority_settings(self) -> PrioritizedReplay:
        """Return the prioritized replay by which sequences are sampled."""
        return PrioritizedReplay(self.alpha, self.beta, beta_steps=2**31 - 1)

    @property
    def sequence_length(self) -> int:
        """Return the number of steps of a sequence, including its burn-in."""
        return self.burn_in + self.length

    def empty(self, capacity: int, row: PyTree, num_envs: int = 1) -> ReplayBuffer:
        beginnings = capacity // num_envs // self.stride
        steps = beginnings * self.stride
        length = self.sequence_length
        fits = (
            f"must be at least {num_envs * length}, for a sequence of {length} steps of each of {num_envs} environments"
        )
        require(steps >= self.sequence_length, "capacity", capacity, fits)
        layout = RowLayout.from_row(replace(row, memory=None))
        tables = {dtype: jnp.zeros((num_envs * steps, width), dtype) for dtype, width in layout.widths.items()}
        memory = tree.broadcast(tree.zeros_like(row.memory), num_envs * beginnings)
        none = jnp.zeros(num_envs, jnp.int32)
        kept = SequenceBuffer(tables, memory, none, none, jnp.int32(0), layout, self)
        if not self.alpha:
            return kept
        return PrioritizedSequenceBuffer(kept, Priorities.empty(num_envs * beginnings, self.priority_settings))
