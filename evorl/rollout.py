"""Acting in environments: many at once, until each has had its episodes or steps.

A policy acts for n environments at once: (obs [n], memory [n], keys [n]) -> (action, memory, extras), leaves [n].
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import tree
from evorl.types import Env, Key, Memory, Metrics, Transition

Policy = Callable[[Any, Memory, Key], tuple[Any, Memory, dict[str, Any]]]
Stored = TypeVar("Stored")
UNLIMITED = jnp.iinfo(jnp.int32).max  # episodes or steps that no play reaches


@struct.dataclass
class EnvSlot:
    """One environment between two steps; the workflows hold n of them, leaves [n, ...]."""

    env_state: Any
    obs: Any
    memory: Any
    episode_return: Any  # [] undiscounted, so far
    episode_length: Any  # [] int32, so far


@struct.dataclass
class EpisodeStats:
    """What n slots did during one play, each leaf [n]."""

    steps: Any  # int32
    episodes: Any  # int32, ended
    returns: Any  # summed over ended episodes
    lengths: Any  # int32, summed over ended episodes

    @classmethod
    def zeros(cls, n: int) -> "EpisodeStats":
        """Before the first step."""
        none = jnp.zeros(n, jnp.int32)
        return cls(none, none, jnp.zeros(n), none)

    @property
    def mean_return(self) -> Array:
        """[n], 0 where no episode ended."""
        return self.returns / jnp.maximum(self.episodes, 1)

    @property
    def error(self) -> Array:
        """[], the standard error of the mean return, from what the slots differ by; infinite for fewer than two."""
        played = self.episodes > 0
        n = played.sum()
        mean = jnp.where(played, self.mean_return, 0).sum() / jnp.maximum(n, 1)
        squares = jnp.where(played, (self.mean_return - mean) ** 2, 0).sum()
        return jnp.where(n > 1, jnp.sqrt(squares / jnp.maximum(n * (n - 1), 1)), jnp.inf)

    def metrics(self) -> Metrics:
        """Counts and means over all slots; `return` and `episode_length` are means over ended episodes."""
        episodes = self.episodes.sum()
        ended = jnp.maximum(episodes, 1)
        return {
            "env_steps": self.steps.sum(),
            "episodes": episodes,
            "return": self.returns.sum() / ended,
            "episode_length": self.lengths.sum() / ended,
        }

    def evaluation(self) -> Metrics:
        """The metrics of a play that was an evaluation."""
        metrics = self.metrics()
        reported = {name: metrics[name] for name in ("return", "episodes", "episode_length")}
        return reported | {"return_error": self.error}


@struct.dataclass
class Pool:
    """Starts that nothing has used yet: those in places `used` to n."""

    starts: EnvSlot  # leaves [n, ...]
    used: Any  # [] int32
    refills: Any  # [] int32

    @classmethod
    def dry(cls, shapes: EnvSlot, n: int) -> "Pool":
        """A pool that has none left, of starts like these."""
        return cls(tree.zeros(shapes), jnp.int32(n), jnp.int32(0))

    def restart(
        self, slots: EnvSlot, ended: Bool[Array, " n"], draw: Callable[[Array], EnvSlot]
    ) -> tuple[EnvSlot, "Pool"]:
        """Slots with a new start where ended; where too few are left, n others are drawn, those of draw(refills)."""
        count = ended.sum(dtype=jnp.int32)

        def refill(_: Array, pool: Pool) -> Pool:
            return Pool(draw(pool.refills), jnp.int32(0), pool.refills + 1)

        def take(_: Array, carry: tuple[EnvSlot, Pool]) -> tuple[EnvSlot, Pool]:
            slots, pool = carry
            lacks = (pool.used + count > ended.shape[0]).astype(jnp.int32)
            pool = tree.repeat(lacks, refill, pool)
            place = jnp.clip(pool.used + jnp.cumsum(ended) - 1, 0, ended.shape[0] - 1)
            after = tree.where(ended, tree.index(pool.starts, place), slots)
            return after, Pool(pool.starts, pool.used + count, pool.refills)

        return tree.repeat((count > 0).astype(jnp.int32), take, (slots, self))  # most steps end no episode


Playing = tuple[EnvSlot, EpisodeStats, Any]  # what a play carries; the last is a Pool where every start is new


def start(env: Env, env_params: Any, memory: Memory, keys: Key) -> EnvSlot:
    """Slots at the start of an episode, one for each of keys [...], leaves [..., ...]."""
    if keys.ndim:
        return jax.vmap(lambda key: start(env, env_params, memory, key))(keys)
    with jax.named_scope("environment"):
        return EnvSlot(*env.reset(keys, env_params), memory, jnp.float32(0), jnp.int32(0))


def starts(env: Env, env_params: Any, memory: Memory, keys: Key, drawn: Int[Array, ""] | int) -> EnvSlot:
    """Starts of keys [rows, n], leaves [rows, n, ...], of which the first `drawn` rows are filled.

    Reset is compiled once.
    """
    rows = len(keys)
    empty = jax.eval_shape(lambda: start(env, env_params, memory, keys[0]))
    table = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), empty)

    def draw(row: Array, table: EnvSlot) -> EnvSlot:
        fresh = start(env, env_params, memory, keys[row])
        return jax.tree.map(lambda x, new: x.at[row].set(new), table, fresh)

    return tree.repeat(jnp.int32(drawn), draw, table)


def interact(env: Env, env_params: Any, policy: Policy, slots: EnvSlot, keys: Key) -> tuple[EnvSlot, Transition]:
    """One step of n slots, keys [n]; episodes that end are left at their end."""
    key_act, key_step = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    with jax.named_scope("policy"):
        action, memory, extras = policy(slots.obs, slots.memory, key_act)
    with jax.named_scope("environment"):
        env_state, timestep = jax.vmap(env.step, (0, 0, 0, None))(key_step, slots.env_state, action, env_params)
    transition = Transition(
        slots.obs, action, timestep.reward, timestep.obs, timestep.terminated, timestep.truncated, extras
    )
    returns = slots.episode_return + timestep.reward
    return EnvSlot(env_state, timestep.obs, memory, returns, slots.episode_length + 1), transition


def play(
    env: Env,
    env_params: Any,
    policy: Policy,
    memory: Memory,
    slots: EnvSlot,
    fresh: EnvSlot,
    fresh_rows: Int[Array, ""] | int,
    keys: Key,
    episodes: Int[Array, " n"],
    steps: Int[Array, ""] | int,
    chunk: int,
    store: Callable[[Stored, Transition, Bool[Array, "chunk n"]], Stored],
    stored: Stored,
) -> tuple[EnvSlot, EpisodeStats, Stored]:
    """Steps n slots until each has ended its `episodes` or taken `steps` steps; stops within a chunk of the last one.

    stored <- store(stored, transitions [chunk, n], mask [chunk, n]) after every chunk, so memory does not grow with
    the length of episodes. Where an episode ends, the next one begins at a start of `fresh`, leaves [rows, n, ...]: a
    slot's k-th new episode takes row k modulo fresh_rows, so that the slots themselves may have begun at row 0. Where
    env.fresh_reset, each start is one that nothing has used.
    """

    def active(stats: EpisodeStats) -> Bool[Array, " n"]:
        return (stats.episodes < episodes) & (stats.steps < steps)

    begin, step = auto_reset(env, env_params, policy, memory, slots, fresh, fresh_rows, keys, active)

    def advance(carry: tuple[Playing, Stored]) -> tuple[Playing, Stored]:
        playing, stored = carry
        playing, (transitions, mask) = jax.lax.scan(step, playing, length=chunk)
        return playing, store(stored, transitions, mask)

    (slots, stats, _), stored = jax.lax.while_loop(
        lambda carry: tree.any_unbatched(active(carry[0][1])), advance, (begin, stored)
    )
    return slots, stats, stored


def auto_reset(
    env: Env,
    env_params: Any,
    policy: Policy,
    memory: Memory,
    slots: EnvSlot,
    fresh: EnvSlot,
    fresh_rows: Int[Array, ""] | int,
    keys: Key,
    active: Callable[[EpisodeStats], Bool[Array, " n"]],
) -> tuple[Playing, Callable[[Playing, None], tuple[Playing, tuple[Transition, Bool[Array, " n"]]]]]:
    """What is carried, and the scanned step: one interaction of the active slots; the others stay as they are."""
    n = keys.shape[0]

    def draw(refills: Array) -> EnvSlot:  # with keys that interact, which splits its own in two, does not use
        of_refill = jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, refills), 2))
        return start(env, env_params, memory, of_refill(keys))

    def step(carry: Playing, _: None) -> tuple[Playing, tuple[Transition, Bool[Array, " n"]]]:
        slots, stats, pool = carry
        mask = active(stats)
        keys_now = jax.vmap(jax.random.fold_in)(keys, stats.steps)
        after, transition = interact(env, env_params, policy, slots, keys_now)
        ended = transition.ended & mask
        stats = EpisodeStats(
            stats.steps + mask,
            stats.episodes + ended,
            stats.returns + jnp.where(ended, after.episode_return, 0),
            stats.lengths + jnp.where(ended, after.episode_length, 0),
        )
        slots = tree.where(mask, after, slots)
        if env.fresh_reset:
            slots, pool = pool.restart(slots, ended, draw)
        else:
            slots = tree.where(ended, tree.index(fresh, (stats.episodes % fresh_rows, jnp.arange(n))), slots)
        return (slots, stats, pool), (transition, mask)

    pool = Pool.dry(jax.eval_shape(draw, jnp.int32(0)), n) if env.fresh_reset else ()
    return (slots, EpisodeStats.zeros(n), pool), step
