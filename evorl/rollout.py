"""Acting in environments: unroll (a fixed number of steps) and play (until enough episodes or steps).

A policy acts for n environments at once: (obs [n], memory [n], keys [n]) -> (action, memory, extras), leaves [n].
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import tree
from evorl.types import Env, Key, Memory, Metrics, Rollout, Transition

Policy = Callable[[Any, Memory, Key], tuple[Any, Memory, dict[str, Any]]]
Stored = TypeVar("Stored")
UNLIMITED = jnp.iinfo(jnp.int32).max  # episodes or steps that no play reaches


@struct.dataclass
class Slot:
    """One environment between two steps; the workflows hold n of them, leaves [n, ...]."""

    env_state: Any
    obs: Any
    memory: Any
    episode_return: Any  # [] undiscounted, so far
    episode_length: Any  # [] int32, so far


@struct.dataclass
class Tally:
    """What n slots did during one play, each leaf [n]."""

    steps: Any  # int32
    episodes: Any  # int32, ended
    returns: Any  # summed over ended episodes
    lengths: Any  # int32, summed over ended episodes

    @classmethod
    def zeros(cls, n: int) -> "Tally":
        none = jnp.zeros(n, jnp.int32)
        return cls(none, none, jnp.zeros(n), none)

    @property
    def mean_return(self) -> Array:
        """[n], 0 where no episode ended."""
        return self.returns / jnp.maximum(self.episodes, 1)

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
        return {name: metrics[name] for name in ("return", "episodes", "episode_length")}


def start(env: Env, env_params: Any, memory: Memory, keys: Key) -> Slot:
    """Slots at the start of an episode, one for each of keys [...], leaves [..., ...]."""
    if keys.ndim:
        return jax.vmap(lambda key: start(env, env_params, memory, key))(keys)
    with jax.named_scope("environment"):
        return Slot(*env.reset(keys, env_params), memory, jnp.float32(0), jnp.int32(0))


def starts(env: Env, env_params: Any, memory: Memory, key: Key, n: int, rows: int, drawn: Int[Array, ""] | int) -> Slot:
    """Starts for n slots, leaves [rows, n, ...], of which the first `drawn` rows are filled: reset is compiled once."""
    keys = jax.random.split(key, (rows, n))
    empty = jax.eval_shape(lambda: start(env, env_params, memory, keys[0]))
    table = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), empty)

    def draw(row: Array, table: Slot) -> Slot:
        fresh = start(env, env_params, memory, keys[row])
        return jax.tree.map(lambda x, new: x.at[row].set(new), table, fresh)

    return tree.repeat(jnp.int32(drawn), draw, table)


def interact(env: Env, env_params: Any, policy: Policy, slots: Slot, keys: Key) -> tuple[Slot, Transition]:
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
    return Slot(env_state, timestep.obs, memory, returns, slots.episode_length + 1), transition


def unroll(
    env: Env, env_params: Any, policy: Policy, memory: Memory, slots: Slot, fresh: Slot, keys: Key, num_steps: int
) -> tuple[Slot, Rollout, Tally]:
    """Steps n slots num_steps times, each with its key of keys [n]; where an episode ends, the next one begins.

    Starts come from `fresh`, leaves [rows, n, ...]: a slot's k-th new episode takes row k modulo rows, so that
    the slots themselves may have begun at row 0.
    Where env.fresh_reset, each start is drawn anew instead. Rollout leaves lead with [num_steps, n].
    """
    tally = Tally.zeros(keys.shape[0])
    step = _auto_reset(env, env_params, policy, memory, fresh, tree.size(fresh), keys, lambda tally: tally.steps >= 0)
    (end, tally), (transitions, _) = jax.lax.scan(step, (slots, tally), length=num_steps)
    return end, Rollout(transitions, slots.memory), tally


def play(
    env: Env,
    env_params: Any,
    policy: Policy,
    memory: Memory,
    slots: Slot,
    fresh: Slot,
    fresh_rows: Int[Array, ""] | int,
    keys: Key,
    episodes: Int[Array, " n"],
    steps: Int[Array, ""] | int,
    chunk: int,
    store: Callable[[Stored, Transition, Bool[Array, "chunk n"]], Stored],
    stored: Stored,
) -> tuple[Slot, Tally, Stored]:
    """Steps n slots until each has ended its `episodes` or taken `steps` steps; stops within a chunk of the last one.

    stored <- store(stored, transitions [chunk, n], mask [chunk, n]) after every chunk, so memory does not grow with
    the length of episodes. Starts are as in unroll, from the first `fresh_rows` rows.
    """

    def active(tally: Tally) -> Bool[Array, " n"]:
        return (tally.episodes < episodes) & (tally.steps < steps)

    step = _auto_reset(env, env_params, policy, memory, fresh, fresh_rows, keys, active)

    def advance(carry: tuple[Slot, Tally, Stored]) -> tuple[Slot, Tally, Stored]:
        slots, tally, stored = carry
        (slots, tally), (transitions, mask) = jax.lax.scan(step, (slots, tally), length=chunk)
        return slots, tally, store(stored, transitions, mask)

    return jax.lax.while_loop(
        lambda carry: tree.anywhere(active(carry[1])), advance, (slots, Tally.zeros(keys.shape[0]), stored)
    )


def _auto_reset(
    env: Env,
    env_params: Any,
    policy: Policy,
    memory: Memory,
    fresh: Slot,
    fresh_rows: Int[Array, ""] | int,
    keys: Key,
    active: Callable[[Tally], Bool[Array, " n"]],
) -> Callable[[tuple[Slot, Tally], None], tuple[tuple[Slot, Tally], tuple[Transition, Bool[Array, " n"]]]]:
    """The scanned step: one interaction of the active slots; the others stay as they are."""
    slot = jnp.arange(keys.shape[0])

    def step(carry: tuple[Slot, Tally], _: None) -> tuple[tuple[Slot, Tally], tuple[Transition, Bool[Array, " n"]]]:
        slots, tally = carry
        mask = active(tally)
        keys_now = jax.vmap(jax.random.fold_in)(keys, tally.steps)
        after, transition = interact(env, env_params, policy, slots, keys_now)
        ended = transition.ended & mask
        if env.fresh_reset:  # with keys that interact, which splits its own in two, does not use
            next_start = start(env, env_params, memory, jax.vmap(jax.random.fold_in, (0, None))(keys_now, 2))
        else:
            next_start = tree.index(fresh, ((tally.episodes + 1) % fresh_rows, slot))
        tally = Tally(
            tally.steps + mask,
            tally.episodes + ended,
            tally.returns + jnp.where(ended, after.episode_return, 0),
            tally.lengths + jnp.where(ended, after.episode_length, 0),
        )
        slots = tree.where(mask, tree.where(ended, next_start, after), slots)
        return (slots, tally), (transition, mask)

    return step
