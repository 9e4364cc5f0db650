"""A replay that keeps each frame once, however many observations it is seen in."""

import math
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

ROWS_PER_SPARE_FRAME = (
    32  # for so many rows there is room for one frame more: the first of an episode beside those that follow
)


@runtime_checkable
class ForgetfulReplayBuffer(ReplayBuffer, Protocol):
    """A replay that can lose its oldest rows."""

    def add(self, rows: Any, mask: Array) -> "ForgetfulReplayBuffer":
        """The replay with the rows, as ReplayBuffer has it."""
        ...

    def drop_oldest(self, count: Array) -> "ForgetfulReplayBuffer":
        """The replay without its `count` oldest rows, []."""
        ...


@struct.dataclass
class FrameBuffer:
    """Frames in a ring, and rows whose observations are places in it: `count` of the observation, as many of its
    successor.

    A frame is stored where it equals, bit by bit, none of its environment's last rows; so what is drawn is what was
    added, whatever the environments did. Where frames run out before rows do, the oldest rows are lost.
    """

    rows: ForgetfulReplayBuffer
    frames: RingBuffer  # of (frame, how many rows were added before its own)
    recent: tuple[Int[Array, "n last"], UInt32[Array, "n last"]]  # of each environment's last rows: places and numbers
    frames_added: UInt32[Array, ""]  # as it may overflow, only differences count
    rows_added: UInt32[Array, ""]
    observation: RowLayout = struct.field(pytree_node=False)
    count: int = struct.field(pytree_node=False)

    @property
    def size(self) -> Any:
        return self.rows.size

    @property
    def share_window(self) -> int:
        """How many frames may be added between a row and the frames that it shares with those before it."""
        return self.recent[0].size

    @jax.named_scope("replay")
    def add(self, rows: Transition, mask: Bool[Array, "steps n"]) -> "FrameBuffer":
        mask &= tree.find_finite_rows(tree.merge_axes(rows)).reshape(mask.shape)
        seen = jax.tree.map(self._split_frames, rows.obs, rows.next_obs)
        recent, new, place = self._find_frames(seen, mask)
        row = self.rows_added + (jnp.cumsum(mask).reshape(mask.shape) - mask).astype(jnp.uint32)
        frames = self.frames.add((seen, jnp.broadcast_to(row[..., None], new.shape)), new)
        rows_added = self.rows_added + mask.sum(dtype=jnp.uint32)
        # no row from that of this frame on shares one that is older than the oldest
        edge = frames.gather_rows((frames.position + self.share_window + new[0].size) % frames.capacity)[1]
        kept = self.rows.add(replace(rows, obs=place, next_obs=None), mask)
        lost = jnp.maximum(kept.size - (rows_added - edge).astype(jnp.int32), 0)
        kept = kept.drop_oldest(jnp.where(frames.size == frames.capacity, lost, 0))
        frames_added = self.frames_added + new.sum(dtype=jnp.uint32)
        return FrameBuffer(kept, frames, recent, frames_added, rows_added, self.observation, self.count)

    def _split_frames(self, obs: Array, next_obs: Array) -> Array:
        """Those of both, [steps, n, 2 count, numbers], of leaves [steps, n, *shape]."""
        return jnp.concatenate([x.reshape(*x.shape[:2], self.count, -1) for x in (obs, next_obs)], axis=2)

    def _find_frames(
        self, seen: PyTree, mask: Bool[Array, "steps n"]
    ) -> tuple[Any, Bool[Array, "steps n frames"], Int[Array, "steps n frames"]]:
        """What the environments' last rows have then; which frames, [steps, n, 2 count, ...], are new; their places."""

        def step(carry: Any, now: Any) -> Any:
            (added, last), (seen, mask) = carry, now
            place, number, frames = last
            there = self.frames_added + added.astype(jnp.uint32) - number <= self.share_window
            old = _match_frames(seen, frames) & there[:, None]
            twin = _match_frames(seen, seen) & jnp.tri(2 * self.count, k=-1, dtype=bool)  # of which the first is stored
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
        """A sample with observations for places."""
        frames, _ = self.frames.gather_rows(sample.rows.obs)
        obs, next_obs = (
            self.observation.treedef.unflatten(
                x[..., part, :].reshape(*sample.index.shape, *shape)
                for x, (_, shape) in zip(jax.tree.leaves(frames), self.observation.leaves, strict=True)
            )
            for part in (slice(self.count), slice(self.count, None))
        )
        return replace(sample, rows=replace(sample.rows, obs=obs, next_obs=next_obs))


@struct.dataclass
class PrioritizedFrameBuffer:
    """The same, where rows are drawn by their TD errors."""

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
    """Rows as `rows` keeps and draws them, of which each frame is kept once.

    The observation is `count` frames, leaves [count, ...], as the wrapper FrameStack makes them; a count of 1 still
    keeps no successor beside its observation. There is room for one frame more for 32 rows.
    """

    count: int = 1
    rows: ReplayFactory = UNIFORM

    def __post_init__(self) -> None:
        require_int("count", self.count)
        require(not self.rows.has_sequences, "rows", type(self.rows).__name__, "must be a replay of single rows")

    @property
    def has_sequences(self) -> bool:
        return False

    def empty(self, capacity: int, row: Transition, num_envs: int = 1) -> ReplayBuffer:
        """Raises OptionError where the observation is not of `count` frames, or the rows are kept by what cannot."""
        for leaf in jax.tree.leaves(row.obs):
            whole = self.count == 1 or (leaf.shape and leaf.shape[0] % self.count == 0)
            require(bool(whole), "count", self.count, f"must divide the first axis of {list(leaf.shape)}")
        several, last = (
            2 * self.count,
            max(math.prod(row.reward.shape), 1),
        )  # rewards of a row: its successor's distance
        place = jax.ShapeDtypeStruct((several,), jnp.int32)
        rows = self.rows.empty(capacity, replace(row, obs=place, next_obs=None), num_envs)
        if not isinstance(rows, ForgetfulReplayBuffer):
            raise OptionError(f"rows={type(self.rows).__name__}: cannot forget its oldest rows, as frames ask of it")
        frame = jax.tree.map(lambda x: jax.ShapeDtypeStruct((math.prod(x.shape) // self.count,), x.dtype), row.obs)
        reach = num_envs * last * several
        room = capacity + capacity // ROWS_PER_SPARE_FRAME + 2 * reach
        frames = RingBuffer.empty(room, (frame, jax.ShapeDtypeStruct((), jnp.uint32)))
        nowhere = jnp.zeros((num_envs, last * several), jnp.int32)
        recent = nowhere, nowhere.astype(jnp.uint32)
        none = jnp.uint32(reach + 1)  # so that number 0 is out of reach
        rows = rows.drop_oldest(jnp.int32(0))  # as it is from then on
        framed = FrameBuffer(rows, frames, recent, none, jnp.uint32(0), RowLayout.from_row(row.obs), self.count)
        return PrioritizedFrameBuffer(framed) if isinstance(rows, PrioritizedReplayBuffer) else framed


def _match_frames(a: PyTree, b: PyTree) -> Bool[Array, "n new old"]:
    """Which of frames, leaves [n, new, numbers] and [n, old, numbers], have the same bits."""

    def match_leaf(x: Array, y: Array) -> Array:
        return (_to_bits(x)[:, :, None] == _to_bits(y)[:, None]).all(-1)

    return jnp.stack(jax.tree.leaves(jax.tree.map(match_leaf, a, b))).all(0)


def _to_bits(x: Array) -> Array:
    """Numbers as unsigned ones of their size, so that 0 and -0 differ."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def _select_match(x: Array, mask: Bool[Array, "n new old"], otherwise: Array) -> Array:
    """For each of the new, [n, new], the first of x [n, old] where mask."""
    return jnp.where(mask.any(-1), jnp.take_along_axis(x, mask.argmax(-1), axis=1), otherwise)
