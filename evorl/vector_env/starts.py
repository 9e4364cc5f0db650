"""Where episodes begin: at draws of the environment, or at given states."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import mesh, tree
from evorl.types import Key
from evorl.vector_env import on_host
from evorl.vector_env.episodes import EnvSlot
from evorl.vector_env.world import World


@struct.dataclass
class FromParams:
    """Draws of env.reset. `drawn` starts of each slot, at most `most`, are drawn beforehand and taken in turn, again
    and again; where env.fresh_reset, each start is one that nothing has used. On the host none is drawn beforehand.
    """

    drawn: Any = 1  # [] int32
    most: int = struct.field(pytree_node=False, default=1)

    def begin(
        self, world: World, key: Key, group: Int[Array, " n"], slots: EnvSlot | None, restart: Bool[Array, ""]
    ) -> tuple[EnvSlot, Any]:
        if world.hosted:
            return on_host.begin(world, key, group, slots, restart)
        rows = 1 if world.env.fresh_reset else self.most
        keys = jax.random.split(key, (rows, world.total))[:, group]
        table = _table(jnp.minimum(self.drawn, rows), rows, lambda row: world.reset(keys[row]))
        first = tree.index(table, 0)
        slots = world.enter(first, slots, restart)
        return slots, Pool.dry(first, world.n) if world.env.fresh_reset else table

    def next(
        self, world: World, keys: Key, slots: EnvSlot, ended: Bool[Array, " n"], episodes: Int[Array, " n"], left: Any
    ) -> tuple[EnvSlot, Any]:
        if isinstance(left, on_host.Resting):
            return on_host.next_episodes(world, keys, slots, ended, episodes, left)
        if not world.env.fresh_reset:
            return _turn(world, slots, ended, episodes % jnp.minimum(self.drawn, self.most), left), left

        def draw(refills: Array) -> tuple[Any, Any]:  # with keys that interact, which splits its own in two, has not
            of_refill = jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, refills), 2))
            return world.reset(of_refill(keys))

        return left.restart(world, slots, ended, draw)

    def resting(self, left: Any) -> Bool[Array, " n"] | bool:
        return left.which if isinstance(left, on_host.Resting) else False


@struct.dataclass
class OnLevels:
    """Given levels, leaves [most, n, ...]: slot i plays the first `count` of its own in turn, again and again."""

    levels: Any
    count: Any = 1  # [] int32

    def begin(
        self, world: World, key: Key, group: Int[Array, " n"], slots: EnvSlot | None, restart: Bool[Array, ""]
    ) -> tuple[EnvSlot, Any]:
        rows = tree.size(self.levels)
        keys = jax.random.split(key, (rows, world.total))[:, group]
        levels = jax.tree.map(lambda x: x[:, group], self.levels)
        table = _table(self.count, rows, lambda row: world.reset_to(keys[row], tree.index(levels, row)))
        return world.enter(tree.index(table, 0), slots, restart), table

    def next(
        self, world: World, keys: Key, slots: EnvSlot, ended: Bool[Array, " n"], episodes: Int[Array, " n"], left: Any
    ) -> tuple[EnvSlot, Any]:
        del keys
        return _turn(world, slots, ended, episodes % self.count, left), left

    def resting(self, left: Any) -> bool:
        del left
        return False


@struct.dataclass
class Table:
    """Given starts, pairs of state and observation as env.reset gives them, leaves [m, ...], each taken once, in order.

    The slots take the first n of them. A slot that finds none left rests.
    """

    states: Any

    def begin(
        self, world: World, key: Key, group: Int[Array, " n"], slots: EnvSlot | None, restart: Bool[Array, ""]
    ) -> tuple[EnvSlot, Any]:
        del key
        m = tree.size(self.states)
        first = tree.index(self.states, jnp.minimum(group, m - 1))
        return world.enter(first, slots, restart), (jnp.int32(world.total), group >= m)

    def next(
        self, world: World, keys: Key, slots: EnvSlot, ended: Bool[Array, " n"], episodes: Int[Array, " n"], left: Any
    ) -> tuple[EnvSlot, Any]:
        del keys, episodes
        (taken, resting), m = left, tree.size(self.states)
        everywhere = mesh.gathered(ended, mesh.SLOTS)
        place = taken + mesh.own(jnp.cumsum(everywhere, dtype=jnp.int32), mesh.SLOTS, world.n) - 1
        found = ended & (place < m)
        start = tree.index(self.states, jnp.clip(place, 0, m - 1))
        taken = jnp.minimum(taken + everywhere.sum(dtype=jnp.int32), m)
        return world.restart(slots, start, found), (taken, resting | (ended & ~found))

    def resting(self, left: Any) -> Bool[Array, " n"]:
        return left[1]


@struct.dataclass
class Same:
    """Given starts, pairs of state and observation as env.reset gives them, leaves [n, ...]: slot i has its own."""

    states: Any

    def begin(
        self, world: World, key: Key, group: Int[Array, " n"], slots: EnvSlot | None, restart: Bool[Array, ""]
    ) -> tuple[EnvSlot, Any]:
        del key
        return world.enter(tree.index(self.states, group), slots, restart), ()

    def next(
        self, world: World, keys: Key, slots: EnvSlot, ended: Bool[Array, " n"], episodes: Int[Array, " n"], left: Any
    ) -> tuple[EnvSlot, Any]:
        del keys, episodes
        return world.restart(slots, mesh.own(self.states, mesh.SLOTS, world.n), ended), left

    def resting(self, left: Any) -> bool:
        del left
        return False


@struct.dataclass
class Pool:
    """Starts that nothing has used yet: those in places `used` to n."""

    starts: Any  # leaves [n, ...]
    used: Any  # [] int32
    refills: Any  # [] int32

    @classmethod
    def dry(cls, shapes: Any, n: int) -> "Pool":
        """A pool that has none left, of starts like these."""
        return cls(tree.zeros(shapes), jnp.int32(n), jnp.int32(0))

    def restart(
        self, world: World, slots: EnvSlot, ended: Bool[Array, " n"], draw: Callable[[Array], tuple[Any, Any]]
    ) -> tuple[EnvSlot, "Pool"]:
        """Slots with a new start where ended; where too few are left, n others are drawn, those of draw(refills)."""
        count = ended.sum(dtype=jnp.int32)

        def refill(_: Array, pool: Pool) -> Pool:
            return Pool(draw(pool.refills), jnp.int32(0), pool.refills + 1)

        def take(_: Array, carry: tuple[EnvSlot, Pool]) -> tuple[EnvSlot, Pool]:
            slots, pool = carry
            lacks = (pool.used + count > world.n).astype(jnp.int32)
            pool = tree.repeat(lacks, refill, pool)
            place = jnp.clip(pool.used + jnp.cumsum(ended) - 1, 0, world.n - 1)
            after = world.restart(slots, tree.index(pool.starts, place), ended)
            return after, Pool(pool.starts, pool.used + count, pool.refills)

        return tree.repeat((count > 0).astype(jnp.int32), take, (slots, self))  # most steps end no episode


def _table(count: Any, rows: int, draw: Callable[[Any], tuple[Any, Any]]) -> tuple[Any, Any]:
    """The starts draw(row), leaves [n, ...], in the first `count` of rows, [rows, n, ...]; draw is compiled once."""
    table = tree.broadcast(tree.zeros(jax.eval_shape(draw, jnp.int32(0))), rows)
    return tree.repeat(jnp.int32(count), lambda row, table: tree.put(table, row, draw(row)), table)


def _turn(world: World, slots: EnvSlot, ended: Bool[Array, " n"], row: Int[Array, " n"], table: Any) -> EnvSlot:
    """The slots at their start in a row of a table, where ended."""
    return world.restart(slots, tree.index(table, (row, jnp.arange(world.n))), ended)
