"""A replay that keeps each frame once, however many observations it is seen in."""

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from evorl import tree
from evorl.errors import OptionError, require, require_whole
from evorl.replay.ring import UNIFORM, Ring
from evorl.replay.row import Row
from evorl.types import Prioritizes, Replay, Replays, Sample, Transition

SPARE = 32  # for so many rows there is room for one frame more: the first of an episode beside those that follow


@runtime_checkable
class Forgets(Replay, Protocol):
    """A replay that can lose its oldest rows."""

    def forget(self, count: Array) -> "Forgets":
        """The replay without its `count` oldest rows, []."""
        ...


@struct.dataclass
class Framed:
    """Frames in a ring, and rows whose observations are places in it: `count` of the observation, as many of its
    successor.

    A frame is stored where it equals, bit by bit, none of its slot's last rows; so what is drawn is what was added,
    whatever the slots did. Where frames run out before rows do, the oldest rows are lost.
    """

    rows: Any  # a replay that Forgets
    frames: Ring  # of (frame, how many rows were added before its own)
    recent: Any  # of each slot's last rows the frames' places, int32, and numbers, uint32, [n, last * 2 count]
    frames_added: Any  # [] uint32; as it may overflow, only differences count
    rows_added: Any  # [] uint32
    observation: Row = struct.field(pytree_node=False)
    count: int = struct.field(pytree_node=False)

    @property
    def size(self) -> Any:
        return self.rows.size

    @property
    def reach(self) -> int:
        """How many frames may be added between a row and the frames that it shares with those before it."""
        return self.recent[0].size

    @jax.named_scope("replay")
    def add(self, rows: Transition, mask: Bool[Array, "steps n"]) -> "Framed":
        mask &= tree.finite_rows(tree.merge_axes(rows)).reshape(mask.shape)
        seen = jax.tree.map(self._frames, rows.obs, rows.next_obs)
        recent, new, place = self._found(seen, mask)
        row = self.rows_added + (jnp.cumsum(mask).reshape(mask.shape) - mask).astype(jnp.uint32)
        frames = self.frames.add((seen, jnp.broadcast_to(row[..., None], new.shape)), new)
        rows_added = self.rows_added + mask.sum(dtype=jnp.uint32)
        # no row from that of this frame on shares one that is older than the oldest
        edge = frames.rows((frames.position + self.reach + new[0].size) % frames.capacity)[1]
        kept = self.rows.add(replace(rows, obs=place, next_obs=()), mask)
        lost = jnp.maximum(kept.size - (rows_added - edge).astype(jnp.int32), 0)
        kept = kept.forget(jnp.where(frames.size == frames.capacity, lost, 0))
        frames_added = self.frames_added + new.sum(dtype=jnp.uint32)
        return Framed(kept, frames, recent, frames_added, rows_added, self.observation, self.count)

    def _frames(self, obs: Array, next_obs: Array) -> Array:
        """Those of both, [steps, n, 2 count, numbers], of leaves [steps, n, *shape]."""
        return jnp.concatenate([x.reshape(*x.shape[:2], self.count, -1) for x in (obs, next_obs)], axis=2)

    def _found(
        self, seen: PyTree, mask: Bool[Array, "steps n"]
    ) -> tuple[Any, Bool[Array, "steps n frames"], Int[Array, "steps n frames"]]:
        """What the slots' last rows have then; which frames, [steps, n, 2 count, ...], are new; where they all are."""

        def step(carry: Any, now: Any) -> Any:
            (added, last), (seen, mask) = carry, now
            place, number, frames = last
            there = self.frames_added + added.astype(jnp.uint32) - number <= self.reach
            old = _equal(seen, frames) & there[:, None]
            twin = _equal(seen, seen) & jnp.tri(2 * self.count, k=-1, dtype=bool)  # of which the first is stored
            new = mask[:, None] & ~old.any(-1) & ~twin.any(-1)
            order = added + jnp.cumsum(new, dtype=jnp.int32).reshape(new.shape) - 1

            def of_each(known: Array, added: Array) -> Array:
                own = _first(known, old, added)
                return _first(own, twin, own)

            where = (
                of_each(place, (self.frames.position + order) % self.frames.capacity),
                of_each(number, self.frames_added + order.astype(jnp.uint32)),
            )
            newest = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1)[:, b.shape[1] :], last, (*where, seen))
            return (added + new.sum(dtype=jnp.int32), tree.where(mask, newest, last)), (new, where[0])

        last = (*self.recent, self.frames.rows(self.recent[0])[0])
        (_, last), (new, place) = jax.lax.scan(step, (jnp.int32(0), last), (seen, mask))
        return last[:2], new, place

    @jax.named_scope("replay")
    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        return self._whole(self.rows.sample(key, shape))

    def _whole(self, sample: Sample) -> Sample:
        """A sample with observations for places."""
        frames, _ = self.frames.rows(sample.rows.obs)
        obs, next_obs = (
            self.observation.treedef.unflatten(
                x[..., part, :].reshape(*sample.index.shape, *shape)
                for x, (_, shape) in zip(jax.tree.leaves(frames), self.observation.leaves, strict=True)
            )
            for part in (slice(self.count), slice(self.count, None))
        )
        return replace(sample, rows=replace(sample.rows, obs=obs, next_obs=next_obs))


@struct.dataclass
class PrioritizedFramed:
    """The same, where rows are drawn by their TD errors."""

    kept: Framed

    @property
    def size(self) -> Any:
        return self.kept.size

    def add(self, rows: Transition, mask: Bool[Array, "steps n"]) -> "PrioritizedFramed":
        return PrioritizedFramed(self.kept.add(rows, mask))

    def sample(self, key: Array, shape: tuple[int, ...]) -> Sample:
        return self.kept.sample(key, shape)

    def update(self, index: Int[Array, "..."], priority: Float[Array, "..."]) -> "PrioritizedFramed":
        return PrioritizedFramed(replace(self.kept, rows=self.kept.rows.update(index, priority)))


@dataclass(frozen=True)
class FrameReplay:
    """Rows as `rows` keeps and draws them, of which each frame is kept once.

    The observation is `count` frames, leaves [count, ...], as the wrapper Frames makes them; a count of 1 still keeps
    no successor beside its observation. There is room for one frame more for 32 rows.
    """

    count: int = 1
    rows: Replays = UNIFORM

    def __post_init__(self) -> None:
        require_whole("count", self.count)
        require(not self.rows.sequences, "rows", type(self.rows).__name__, "must be a replay of single rows")

    @property
    def sequences(self) -> bool:
        return False

    def empty(self, capacity: int, row: Transition, num_slots: int = 1) -> Replay:
        """Raises OptionError where the observation is not of `count` frames, or the rows are kept by what cannot."""
        for leaf in jax.tree.leaves(row.obs):
            whole = self.count == 1 or (leaf.shape and leaf.shape[0] % self.count == 0)
            require(bool(whole), "count", self.count, f"must divide the first axis of {list(leaf.shape)}")
        several, last = (
            2 * self.count,
            max(math.prod(row.reward.shape), 1),
        )  # rewards of a row: its successor's distance
        place = jax.ShapeDtypeStruct((several,), jnp.int32)
        rows = self.rows.empty(capacity, replace(row, obs=place, next_obs=()), num_slots)
        if not isinstance(rows, Forgets):
            raise OptionError(f"rows={type(self.rows).__name__}: cannot forget its oldest rows, as frames ask of it")
        frame = jax.tree.map(lambda x: jax.ShapeDtypeStruct((math.prod(x.shape) // self.count,), x.dtype), row.obs)
        reach = num_slots * last * several
        room = capacity + capacity // SPARE + 2 * reach
        frames = Ring.empty(room, (frame, jax.ShapeDtypeStruct((), jnp.uint32)))
        nowhere = jnp.zeros((num_slots, last * several), jnp.int32)
        recent = nowhere, nowhere.astype(jnp.uint32)
        none = jnp.uint32(reach + 1)  # so that number 0 is out of reach
        rows = rows.forget(jnp.int32(0))  # as it is from then on
        framed = Framed(rows, frames, recent, none, jnp.uint32(0), Row.of(row.obs), self.count)
        return PrioritizedFramed(framed) if isinstance(rows, Prioritizes) else framed


def _equal(a: PyTree, b: PyTree) -> Bool[Array, "n new old"]:
    """Which of frames, leaves [n, new, numbers] and [n, old, numbers], have the same bits."""

    def same(x: Array, y: Array) -> Array:
        return (_bits(x)[:, :, None] == _bits(y)[:, None]).all(-1)

    return jnp.stack(jax.tree.leaves(jax.tree.map(same, a, b))).all(0)


def _bits(x: Array) -> Array:
    """Numbers as unsigned ones of their size, so that 0 and -0 differ."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def _first(x: Array, mask: Bool[Array, "n new old"], otherwise: Array) -> Array:
    """For each of the new, [n, new], the first of x [n, old] where mask."""
    return jnp.where(mask.any(-1), jnp.take_along_axis(x, mask.argmax(-1), axis=1), otherwise)
