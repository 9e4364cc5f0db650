"""Starts of episodes: from env.reset, on levels, or at given states."""

from collections.abc import Callable
from dataclasses import replace
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
    """Starts from env.reset.

    For each environment, `num_starts` starts, at most `max_starts`, are sampled in advance and used in turn,
    cyclically. If env.fresh_reset is true, each start is used only once. On the host, HostStarts replaces
    this class.
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
        starts_state: Any,
    ) -> tuple[EnvInstance, Any]:
        if not world.env.fresh_reset:
            count = jnp.minimum(self.num_starts, self.max_starts)
            return _restart_from_table(world, envs, ended, episodes, count, starts_state), starts_state

        def reset_refill(refills: Array) -> tuple[Any, Any]:
            return world.reset(jax.vmap(_fold_reset_key, (0, None))(keys, refills))

        return starts_state.restart_ended(world, envs, ended, reset_refill)

    def idle_mask(self, starts_state: Any) -> bool:
        del starts_state
        return False


@struct.dataclass
class LevelStarts:
    """Starts on given levels, leaves [most, n, ...]; environment i uses its first `num_levels` in turn, cyclically.

    If env.fresh_reset is true, each episode has a start of its own on its level. Otherwise the episodes on a
    level have the same start.
    """

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
        if world.env.fresh_reset:
            first = world.reset_to_levels(keys[0], tree.index(levels, 0))
            return world.init_or_restart(first, envs, restart), LevelStartPool.empty(levels, first)
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
        starts_state: Any,
    ) -> tuple[EnvInstance, Any]:
        count = jnp.asarray(self.num_levels)
        if not world.env.fresh_reset:
            return _restart_from_table(world, envs, ended, episodes, count, starts_state), starts_state

        def take(_: Array, carry: tuple[EnvInstance, LevelStartPool]) -> tuple[EnvInstance, LevelStartPool]:
            envs, pool = carry
            pool = pool.refill(world, keys, ended, episodes, count)
            return world.restart(envs, pool.starts, ended), replace(pool, used=pool.used | ended)

        once = ended.any().astype(jnp.int32)  # most steps end no episode
        return tree.masked_fori_loop(once, take, (envs, starts_state))

    def idle_mask(self, starts_state: Any) -> bool:
        del starts_state
        return False


@struct.dataclass
class LevelStartPool:
    """Start of the next episode of each environment on its levels, computed for all environments at once."""

    levels: Level  # leaves [most, n, ...]
    starts: tuple[State, PyTree]  # leaves [n, ...]
    used: Bool[Array, " n"]  # whether the environment has used its start

    @classmethod
    def empty(cls, levels: Level, shapes: Any) -> "LevelStartPool":
        """Return a pool without unused starts, for starts of these shapes."""
        n = jax.tree.leaves(levels)[0].shape[1]
        return cls(levels, tree.zeros_like(shapes), jnp.ones(n, bool))

    def refill(
        self,
        world: EnvBatch,
        keys: Key,
        ended: Bool[Array, " n"],
        episodes: Int[Array, " n"],
        num_levels: Int[Array, ""],
    ) -> "LevelStartPool":
        """Replace the starts of all environments if an ended one has used its own."""
        following = episodes + ~ended  # index of the next episode of each environment

        def reset(_: Array, starts: Any) -> Any:
            levels = _select_row(self.levels, following, num_levels)
            return world.reset_to_levels(jax.vmap(_fold_reset_key)(keys, following), levels)

        lacks = (ended & self.used).any()
        starts = tree.masked_fori_loop(lacks.astype(jnp.int32), reset, self.starts)
        return replace(self, starts=starts, used=self.used & ~lacks)


@struct.dataclass
class StartQueue:
    """Queue of given starts, leaves [m, ...]; each is used once, in order.

    A start is a pair of state and observation, as env.reset returns it. The environments take the first n of
    them. An environment that finds none left is idle.
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
        starts_state: Any,
    ) -> tuple[EnvInstance, Any]:
        del keys, episodes
        (taken, resting), m = starts_state, tree.leading_size(self.states)
        everywhere = mesh.gather_shards(ended, mesh.ENVS)
        place = taken + mesh.local_shard(jnp.cumsum(everywhere, dtype=jnp.int32), mesh.ENVS, world.num_envs) - 1
        found = ended & (place < m)
        start = tree.index(self.states, jnp.clip(place, 0, m - 1))
        taken = jnp.minimum(taken + everywhere.sum(dtype=jnp.int32), m)
        return world.restart(envs, start, found), (taken, resting | (ended & ~found))

    def idle_mask(self, starts_state: Any) -> Bool[Array, " n"]:
        return starts_state[1]


@struct.dataclass
class FixedStarts:
    """Given starts, leaves [n, ...], one for each environment, which it uses in every episode.

    A start is a pair of state and observation, as env.reset returns it.
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
        states = self.states if group is None else tree.index(self.states, group)
        return world.init_or_restart(states, envs, restart), None

    def restart_ended(
        self,
        world: EnvBatch,
        keys: Key,
        envs: EnvInstance,
        ended: Bool[Array, " n"],
        episodes: Int[Array, " n"],
        starts_state: Any,
    ) -> tuple[EnvInstance, Any]:
        del keys, episodes
        return world.restart(envs, mesh.local_shard(self.states, mesh.ENVS, world.num_envs), ended), starts_state

    def idle_mask(self, starts_state: Any) -> bool:
        del starts_state
        return False


@struct.dataclass
class StartPool:
    """Pool of n starts, of which those from index `num_used` on are unused."""

    starts: tuple[State, PyTree]  # leaves [n, ...]
    num_used: Int[Array, ""]
    num_refills: Int[Array, ""]

    @classmethod
    def empty(cls, shapes: Any, n: int) -> "StartPool":
        """Return a pool without unused starts, for starts of these shapes."""
        return cls(tree.zeros_like(shapes), jnp.int32(n), jnp.int32(0))

    def restart_ended(
        self, world: EnvBatch, envs: EnvInstance, ended: Bool[Array, " n"], draw: Callable[[Array], tuple[Any, Any]]
    ) -> tuple[EnvInstance, "StartPool"]:
        """Restart the ended environments at unused starts; if too few are left, replace all n by draw(num_refills)."""
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
    """Build the table [rows, n, ...] of starts, with draw(row) in the first `count` rows; draw is compiled once."""
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
    """Restart the ended environments at starts of a table, whose first `count` rows are used in turn."""
    return world.restart(envs, _select_row(table, episodes, count), ended)


def _select_row(table: Any, episodes: Int[Array, " n"], count: Int[Array, ""]) -> Any:
    """Return the entry of each environment in the row that is next after a number of episodes."""
    row = jax.lax.rem(episodes, jnp.broadcast_to(count, episodes.shape))
    return tree.index(table, (row, jnp.arange(len(episodes))))


def _fold_reset_key(key: Key, count: Int[Array, ""]) -> Key:
    """Return the key of a later reset; EnvBatch.interact splits these keys in two and never derives the same ones."""
    return jax.random.fold_in(jax.random.fold_in(key, count), 2)
