"""Frame replay: stores each image frame once, although it is part of several stacked observations."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.errors import OptionError, require, require_int
from evorl.replay.ring import UNIFORM, RingBuffer
from evorl.replay.row_layout import RowLayout
from evorl.types import PrioritizedReplayBuffer, ReplayBuffer, ReplayFactory, Sample, Transition

ROWS_PER_SPARE_FRAME = 32  # one additional frame per this many rows, for the first frame of an episode


@runtime_checkable
class ForgetfulReplayBuffer(ReplayBuffer, Protocol):
    """Protocol of replay buffers that can drop their oldest rows."""

    def add(self, rows: Any, mask: Array) -> "ForgetfulReplayBuffer":
        """Return the buffer with the rows added, as specified by ReplayBuffer."""
        ...

    def drop_oldest(self, count: Array) -> "ForgetfulReplayBuffer":
        """Return the buffer without its `count` oldest rows.

        Args:
            count: Number of rows to drop, shape [].
        """
        ...


@struct.dataclass
class FrameBuffer:
    """Replay buffer with a ring of frames, and rows that hold indices of frames instead of observations.

    A row holds `count` indices for its observation and as many for the next one. Action masks and privileged
    states are no frames; the row holds them whole. A new frame is stored unless it is bitwise identical to a
    frame in the last rows of the same environment. A sample therefore has exactly the observations that were
    added. If the ring of frames is full before the rows are, the oldest rows are dropped.
    """

    rows: ForgetfulReplayBuffer
    frames: RingBuffer  # of (frame, number of rows added before its row)
    recent: tuple[Int[Array, "n last"], UInt32[Array, "n last"]]  # frames of the last rows: indices, serial numbers
    frames_added: UInt32[Array, ""]  # may overflow; only differences are used
    rows_added: UInt32[Array, ""]
    observation: RowLayout = struct.field(pytree_node=False)
    count: int = struct.field(pytree_node=False)

    @property
    def size(self) -> Any:
        return self.rows.size

    @property
    def share_window(self) -> int:
        """Return the maximum number of frames that may be added between a frame and a later row that reuses it."""
        return self.recent[0].size

    @jax.named_scope("replay")
    def add(self, rows: Transition, mask: Bool[Array, "steps n"]) -> "FrameBuffer":
        mask &= tree.find_finite_rows(tree.merge_axes(rows)).reshape(mask.shape)
        (obs, others), (next_obs, next_others) = _split_obs(rows.obs), _split_obs(rows.next_obs)
        seen = jax.tree.map(self._split_frames, obs, next_obs)
        recent, new, place = self._find_frames(seen, mask)
        row = self.rows_added + (jnp.cumsum(mask).reshape(mask.shape) - mask).astype(jnp.uint32)
        frames = self.frames.add((seen, jnp.broadcast_to(row[..., None], new.shape)), new)
        rows_added = self.rows_added + mask.sum(dtype=jnp.uint32)
        # rows from the row of this frame on use no frame that has been overwritten
        edge = frames.gather_rows((frames.position + self.share_window + new[0].size) % frames.capacity)[1]
        kept = self.rows.add(replace(rows, obs=(place, others), next_obs=next_others), mask)
        lost = jnp.maximum(kept.size - (rows_added - edge).astype(jnp.int32), 0)
        kept = kept.drop_oldest(jnp.where(frames.size == frames.capacity, lost, 0))
        frames_added = self.frames_added + new.sum(dtype=jnp.uint32)
        return FrameBuffer(kept, frames, recent, frames_added, rows_added, self.observation, self.count)

    def _split_frames(self, obs: Array, next_obs: Array) -> Array:
        """Return the frames of both observations, shape [steps, n, 2 count, numbers]."""
        return jnp.concatenate([x.reshape(*x.shape[:2], self.count, -1) for x in (obs, next_obs)], axis=2)

    def _find_frames(
        self, seen: PyTree, mask: Bool[Array, "steps n"]
    ) -> tuple[Any, Bool[Array, "steps n frames"], Int[Array, "steps n frames"]]:
        """Find the indices of the frames of new rows, and which of the frames are not stored yet.

        Returns the updated `recent`, a mask of the new frames [steps, n, 2 count], and the indices of all
        frames, of the same shape.
        """

        def step(carry: Any, now: Any) -> Any:
            (added, last), (seen, mask) = carry, now
            place, number, frames = last
            there = self.frames_added + added.astype(jnp.uint32) - number <= self.share_window
            old = _match_frames(seen, frames) & there[:, None]
            twin = _match_frames(seen, seen) & jnp.tri(2 * self.count, k=-1, dtype=bool)  # only the first is stored
            new = mask[:, None] & ~old.any(-1) & ~twin.any(-1)
            order = added + jnp.cumsum(new, dtype=jnp.int32).reshape(new.shape) - 1

            def resolve_place(known: Array, added: Array) -> Array:
                own = _select_match(known, old, added)
                return _select_match(own, twin, own)

            where = (
                resolve_place(place, (self.frames.position + order) % self.frames.capacity),
                resolve_place(number, self.frames_added + order.astype(jnp.uint32)),
            )
            newest = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1)[:, b.shape[1] :], last, (*where, seen))
            return (added + new.sum(dtype=jnp.int32), tree.select(mask, newest, last)), (new, where[0])

        last = (*self.recent, self.frames.gather_rows(self.recent[0])[0])
        (_, last), (new, place) = jax.lax.scan(step, (jnp.int32(0), last), (seen, mask))
        return last[:2], new, place

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        return self._restore_frames(self.rows.sample(key, shape))

    def _restore_frames(self, sample: Sample) -> Sample:
        """Return a sample with its indices of frames replaced by observations."""
        place, others = sample.rows.obs
        frames, _ = self.frames.gather_rows(place)
        obs, next_obs = (
            self.observation.treedef.unflatten(
                x[..., part, :].reshape(*sample.index.shape, *shape)
                for x, (_, shape) in zip(jax.tree.leaves(frames), self.observation.leaves, strict=True)
            )
            for part in (slice(self.count), slice(self.count, None))
        )
        obs, next_obs = _join_obs(obs, others), _join_obs(next_obs, sample.rows.next_obs)
        return replace(sample, rows=replace(sample.rows, obs=obs, next_obs=next_obs))


@struct.dataclass
class PrioritizedFrameBuffer:
    """Frame buffer that samples rows by their TD errors."""

    buffer: FrameBuffer

    @property
    def size(self) -> Any:
        return self.buffer.size

    def add(self, rows: Transition, mask: Bool[Array, "steps n"]) -> "PrioritizedFrameBuffer":
        return PrioritizedFrameBuffer(self.buffer.add(rows, mask))

    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        return self.buffer.sample(key, shape)

    def update_priorities(self, index: Int[Array, "..."], priority: Float[Array, "..."]) -> "PrioritizedFrameBuffer":
        rows = self.buffer.rows
        assert isinstance(rows, PrioritizedReplayBuffer)
        return PrioritizedFrameBuffer(replace(self.buffer, rows=rows.update_priorities(index, priority)))


@dataclass(frozen=True)
class FrameReplay:
    """Frame replay: stores each frame once, and rows with indices of frames in another replay.

    It has room for one additional frame per 32 rows: the first frame of an episode, in addition to the one
    frame of each following step.

    Args:
        count: Number of frames in an observation, leaves [count, ...], as the wrapper FrameStack creates
            them. With a count of 1, the next observation is still not stored twice.
        rows: Replay that stores and samples the rows; it must be able to drop its oldest rows.
    """

    count: int = 1
    rows: ReplayFactory = UNIFORM

    def __post_init__(self) -> None:
        require_int("count", self.count)
        require(
            not self.rows.has_sequences,
            "rows",
            type(self.rows).__name__,
            "must be a replay buffer of single transitions",
        )

    @property
    def has_sequences(self) -> bool:
        return False

    def empty(self, capacity: int, row: Transition, num_envs: int = 1) -> ReplayBuffer:
        """Return an empty buffer.

        Raises:
            OptionError: If an observation does not consist of `count` frames, if the environment has groups of
                agents, or if the replay of rows cannot drop its oldest rows.
        """
        groups = isinstance(row.reward, Mapping)
        require(not groups, "replay", "FrameReplay", "does not support groups of agents; use UniformReplay")
        obs, others = _split_obs(row.obs)
        for leaf in jax.tree.leaves(obs):
            whole = self.count == 1 or (leaf.shape and leaf.shape[0] % self.count == 0)
            require(bool(whole), "count", self.count, f"must divide the first axis of {list(leaf.shape)}")
        several = 2 * self.count
        last = max(math.prod(row.reward.shape), 1)  # number of rewards of a row, hence steps to its next observation
        place = jax.ShapeDtypeStruct((several,), jnp.int32)
        rows = self.rows.empty(capacity, replace(row, obs=(place, others), next_obs=others), num_envs)
        if not isinstance(rows, ForgetfulReplayBuffer):
            raise OptionError(
                f"rows={type(self.rows).__name__}: cannot drop its oldest transitions, which FrameReplay needs"
            )
        frame = jax.tree.map(lambda x: jax.ShapeDtypeStruct((math.prod(x.shape) // self.count,), x.dtype), obs)
        reach = num_envs * last * several
        room = capacity + capacity // ROWS_PER_SPARE_FRAME + 2 * reach
        frames = RingBuffer.empty(room, (frame, jax.ShapeDtypeStruct((), jnp.uint32)))
        nowhere = jnp.zeros((num_envs, last * several), jnp.int32)
        recent = nowhere, nowhere.astype(jnp.uint32)
        none = jnp.uint32(reach + 1)  # so that serial number 0 is too old to be reused
        rows = rows.drop_oldest(jnp.int32(0))  # sets can_drop, which is static, from the start
        framed = FrameBuffer(rows, frames, recent, none, jnp.uint32(0), RowLayout.from_row(obs), self.count)
        return PrioritizedFrameBuffer(framed) if isinstance(rows, PrioritizedReplayBuffer) else framed


def _split_obs(obs: PyTree) -> tuple[PyTree, PyTree]:
    """Return the frames of observations, and their action masks and privileged states; None without these."""
    if not (isinstance(obs, Mapping) and "obs" in obs and obs.keys() <= {"obs", "legal", "state"}):
        return obs, None
    frames, others = _split_obs(obs["obs"])
    return frames, {**obs, "obs": others}


def _join_obs(frames: PyTree, others: PyTree) -> PyTree:
    """Return the observations that `_split_obs` split."""
    return frames if others is None else {**others, "obs": _join_obs(frames, others["obs"])}


def _match_frames(a: PyTree, b: PyTree) -> Bool[Array, "n new old"]:
    """Return which frames, leaves [n, new, numbers] and [n, old, numbers], are bitwise identical."""

    def match_leaf(x: Array, y: Array) -> Array:
        return (_to_bits(x)[:, :, None] == _to_bits(y)[:, None]).all(-1)

    return jnp.stack(jax.tree.leaves(jax.tree.map(match_leaf, a, b))).all(0)


def _to_bits(x: Array) -> Array:
    """Return the bits of floating-point numbers as unsigned integers, so that 0 and -0 differ."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def _select_match(x: Array, mask: Bool[Array, "n new old"], otherwise: Array) -> Array:
    """Return, for each new frame [n, new], the first of x [n, old] that matches by the mask, else `otherwise`."""
    return jnp.where(mask.any(-1), jnp.take_along_axis(x, mask.argmax(-1), axis=1), otherwise)
