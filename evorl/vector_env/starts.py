"""Where episodes begin: at draws of the environment, or at given states."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, PyTree

from evorl import mesh, tree
from evorl.types import Key, Level, State
from evorl.vector_env.env_batch import EnvBatch
from evorl.vector_env.episodes import EnvInstance


@struct.dataclass
class ResetStarts:
    """Draws of env.reset.

    `num_starts` starts of each environment, at most `max_starts`, are drawn beforehand and taken in turn, again and
    again; where env.fresh_reset, each start is one that nothing has used. On the host HostStarts take its place.
    """

    num_starts: Int[Array, ""] | int = 1
    max_starts: int = struct.field(pytree_node=False, default=1)

    def start_episodes(
        self,
        world: EnvBatch,
        key: Key,
        group: Int[Array, " n"] | None,
        envs: EnvInstance | None,
        restart: Bool[Array, ""],
    ) -> tuple[EnvInstance, Any]:
        rows = 1 if world.env.fresh_reset else self.max_starts
        keys = jax.random.split(key, (rows, world.total_envs))
        keys = keys if group is None else keys[:, group]
        table = _build_start_table(jnp.minimum(self.num_starts, rows), rows, lambda row: world.reset(keys[row]))
        first = tree.index(table, 0)
        envs = world.init_or_restart(first, envs, restart)
        return envs, StartPool.empty(first, world.num_envs) if world.env.fresh_reset else table

    def restart_ended(
        self,
        world: EnvBatch,
        keys: Key,
        envs: EnvInstance,
        ended: Bool[Array, " n"],
        episodes: Int[Array, " n"],
        left: Any,
    ) -> tuple[EnvInstance, Any]:
        if not world.env.fresh_reset:
            count = jnp.minimum(self.num_starts, self.max_starts)
            return _restart_from_table(world, envs, ended, episodes, count, left), left

        def reset_refill(refills: Array) -> tuple[Any, Any]:
            # of keys that interact, which splits its own in two, never derives
            of_refill = jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, refills), 2))
            return world.reset(of_refill(keys))

        return left.restart_ended(world, envs, ended, reset_refill)

    def idle_mask(self, left: Any) -> bool:
        del left
        return False


@struct.dataclass
class LevelStarts:
    """Given levels, leaves [most, n, ...]: environment i plays its first `num_levels` in turn, again and again."""

    levels: Level
    num_levels: Int[Array, ""] | int = 1

    def start_episodes(
        self,
        world: EnvBatch,
        key: Key,
        group: Int[Array, " n"] | None,
        envs: EnvInstance | None,
        restart: Bool[Array, ""],
    ) -> tuple[EnvInstance, Any]:
        rows = tree.leading_size(self.levels)
        keys, levels = jax.random.split(key, (rows, world.total_envs)), self.levels
        if group is not None:
            keys, levels = jax.tree.map(lambda x: x[:, group], (keys, levels))
        table = _build_start_table(
            self.num_levels, rows, lambda row: world.reset_to_levels(keys[row], tree.index(levels, row))
        )
        return world.init_or_restart(tree.index(table, 0), envs, restart), table

    def restart_ended(
        self,
        world: EnvBatch,
        keys: Key,
        envs: EnvInstance,
        ended: Bool[Array, " n"],
        episodes: Int[Array, " n"],
        left: Any,
    ) -> tuple[EnvInstance, Any]:
        del keys
        return _restart_from_table(world, envs, ended, episodes, jnp.asarray(self.num_levels), left), left

    def idle_mask(self, left: Any) -> bool:
        del left
        return False


@struct.dataclass
class StartQueue:
    """Given starts, pairs of state and observation as env.reset gives them, leaves [m, ...], each taken once, in order.

    The environments take the first n of them. An environment that finds none left rests.
    """

    states: tuple[State, PyTree]

    def start_episodes(
        self,
        world: EnvBatch,
        key: Key,
        group: Int[Array, " n"] | None,
        envs: EnvInstance | None,
        restart: Bool[Array, ""],
    ) -> tuple[EnvInstance, Any]:
        del key
        m, group = tree.leading_size(self.states), jnp.arange(world.num_envs) if group is None else group
        first = tree.index(self.states, jnp.minimum(group, m - 1))
        return world.init_or_restart(first, envs, restart), (jnp.int32(world.total_envs), group >= m)

    def restart_ended(
        self,
        world: EnvBatch,
        keys: Key,
        envs: EnvInstance,
        ended: Bool[Array, " n"],
        episodes: Int[Array, " n"],
        left: Any,
    ) -> tuple[EnvInstance, Any]:
        del keys, episodes
        (taken, resting), m = left, tree.leading_size(self.states)
        everywhere = mesh.gather_shards(ended, mesh.ENVS)
        place = taken + mesh.local_shard(jnp.cumsum(everywhere, dtype=jnp.int32), mesh.ENVS, world.num_envs) - 1
        found = ended & (place < m)
        start = tree.index(self.states, jnp.clip(place, 0, m - 1))
        taken = jnp.minimum(taken + everywhere.sum(dtype=jnp.int32), m)
        return world.restart(envs, start, found), (taken, resting | (ended & ~found))

    def idle_mask(self, left: Any) -> Bool[Array, " n"]:
        return left[1]


@struct.dataclass
class FixedStarts:
    """Given starts, pairs of state and observation as from env.reset, leaves [n, ...]; each environment has its own."""

    states: tuple[State, PyTree]

    def start_episodes(
        self,
        world: EnvBatch,
        key: Key,
        group: Int[Array, " n"] | None,
        envs: EnvInstance | None,
        restart: Bool[Array, ""],
    ) -> tuple[EnvInstance, Any]:
        del key
        states = self.states if group is None else tree.index(self.states, group)
        return world.init_or_restart(states, envs, restart), None

    def restart_ended(
        self,
        world: EnvBatch,
        keys: Key,
        envs: EnvInstance,
        ended: Bool[Array, " n"],
        episodes: Int[Array, " n"],
        left: Any,
    ) -> tuple[EnvInstance, Any]:
        del keys, episodes
        return world.restart(envs, mesh.local_shard(self.states, mesh.ENVS, world.num_envs), ended), left

    def idle_mask(self, left: Any) -> bool:
        del left
        return False


@struct.dataclass
class StartPool:
    """Starts that nothing has used yet: those in places `num_used` to n."""

    starts: tuple[State, PyTree]  # leaves [n, ...]
    num_used: Int[Array, ""]
    num_refills: Int[Array, ""]

    @classmethod
    def empty(cls, shapes: Any, n: int) -> "StartPool":
        """A pool that has none left, of starts like these."""
        return cls(tree.zeros_like(shapes), jnp.int32(n), jnp.int32(0))

    def restart_ended(
        self, world: EnvBatch, envs: EnvInstance, ended: Bool[Array, " n"], draw: Callable[[Array], tuple[Any, Any]]
    ) -> tuple[EnvInstance, "StartPool"]:
        """Environments with a new start where ended; where too few are left, n others are drawn by draw(refills)."""
        count = ended.sum(dtype=jnp.int32)

        def refill(_: Array, pool: StartPool) -> StartPool:
            return StartPool(draw(pool.num_refills), jnp.int32(0), pool.num_refills + 1)

        def take(_: Array, carry: tuple[EnvInstance, StartPool]) -> tuple[EnvInstance, StartPool]:
            envs, pool = carry
            lacks = (pool.num_used + count > world.num_envs).astype(jnp.int32)
            pool = tree.masked_fori_loop(lacks, refill, pool)
            place = jnp.clip(pool.num_used + jnp.cumsum(ended) - 1, 0, world.num_envs - 1)
            after = world.restart(envs, tree.index(pool.starts, place), ended)
            return after, StartPool(pool.starts, pool.num_used + count, pool.num_refills)

        return tree.masked_fori_loop((count > 0).astype(jnp.int32), take, (envs, self))  # most steps end no episode


def _build_start_table(count: Any, rows: int, draw: Callable[[Any], tuple[Any, Any]]) -> tuple[Any, Any]:
    """The starts draw(row), leaves [n, ...], in the first `count` of rows, [rows, n, ...]; draw is compiled once."""
    table = tree.broadcast(tree.zeros_like(jax.eval_shape(draw, jnp.int32(0))), rows)
    return tree.masked_fori_loop(jnp.int32(count), lambda row, table: tree.set_row(table, row, draw(row)), table)


def _restart_from_table(
    world: EnvBatch,
    envs: EnvInstance,
    ended: Bool[Array, " n"],
    episodes: Int[Array, " n"],
    count: Int[Array, ""],
    table: Any,
) -> EnvInstance:
    """Return the environments where ended at a start of a table, whose first `count` rows are taken in turn."""
    row = jax.lax.rem(episodes, jnp.broadcast_to(count, episodes.shape))
    return world.restart(envs, tree.index(table, (row, jnp.arange(world.num_envs))), ended)
