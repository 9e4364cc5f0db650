"""Acting in environments: many at once, until each has had its episodes or steps.

A policy acts for n environments at once: (obs [n], memory [n], keys [n]) -> (action, memory, extras), leaves [n].
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import mesh, tree
from evorl.types import Key, Transition
from evorl.vector_env import hosts, on_host
from evorl.vector_env.episodes import EnvSlot, EpisodeStats
from evorl.vector_env.world import Policy, World

Stored = TypeVar("Stored")
UNLIMITED = jnp.iinfo(jnp.int32).max  # episodes or steps that no play reaches


@runtime_checkable
class Starts(Protocol):
    """Where episodes begin: a value. What it has `left` is carried from step to step."""

    def begin(
        self, world: World, key: Key, group: Int[Array, " n"], slots: EnvSlot | None, restart: Bool[Array, ""]
    ) -> tuple[EnvSlot, Any]:
        """The slots, where they restart at their first start, the same within a group, and what is left."""
        ...

    def next(
        self, world: World, keys: Key, slots: EnvSlot, ended: Bool[Array, " n"], episodes: Int[Array, " n"], left: Any
    ) -> tuple[EnvSlot, Any]:
        """The slots with a new start where ended, each after so many episodes, and what is left then."""
        ...

    def resting(self, left: Any) -> Bool[Array, " n"] | bool:
        """Which slots have found no start, and wait."""
        ...


@struct.dataclass
class Plan:
    """What n slots are to play. A workflow makes it; another one around it may change it before it is played."""

    starts: Any  # a Starts
    restart: Any = True  # [] bool: from new starts, rather than on from where the slots are
    episodes: Any = ()  # [n] or [] int32: of each slot; () for no end
    steps: Any = ()  # [] int32: of each slot; () for no end
    group: Any = ()  # [n] int32 below n: slots of the same have common random numbers; () for each its own
    params: Any = ()  # leaves [actors, ...]: by whom the slots act, as many each, side by side
    explores: Any = ()  # [] or [actors] bool: whether they explore; () for never
    random: Any = ()  # [] bool: whether they act at random instead; () for never
    stores: Any = ()  # [] bool: whether what they see is stored, where that is a choice
    leaves: Any = False  # [] bool: whether the slots are of no use afterwards, as after an evaluation

    def own(self, n: int, shards: int) -> "Plan":
        """What this device plays of it, where n slots are spread over several; elsewhere all of it."""
        if shards == 1:
            return self
        group = jnp.arange(n) if isinstance(self.group, tuple) else self.group

        def part(x: Any) -> Any:
            return mesh.own(x, mesh.SLOTS, len(x) // shards) if jnp.ndim(x) and len(x) > 1 else x

        params, explores, episodes, group = jax.tree.map(part, (self.params, self.explores, self.episodes, group))
        return replace(self, params=params, explores=explores, episodes=episodes, group=group)


@dataclass(frozen=True)
class Store(Generic[Stored]):
    """Where transitions go: into = add(into, transitions [every, n, ...], mask [every, n]) after `every` steps."""

    every: int
    into: Stored
    add: Callable[[Stored, Transition, Bool[Array, "every n"]], Stored]


Playing = tuple[EnvSlot, EpisodeStats, Any]  # what a play carries; the last is what the starts have left


def play(
    world: World, policy: Policy, plan: Plan, slots: EnvSlot | None, key: Key, store: Store[Stored]
) -> tuple[EnvSlot, EpisodeStats, Stored]:
    """Plays as planned, from slots or, where it restarts or without slots, from new starts.

    It ends within store.every steps of the last slot's end; memory does not grow with the length of episodes.
    """
    begin, step, active = auto_reset(world, policy, plan, slots, key)

    def advance(carry: tuple[Playing, Stored]) -> tuple[Playing, Stored]:
        playing, stored = carry
        playing, (transitions, mask) = jax.lax.scan(step, playing, length=store.every)
        if world.batch:
            transitions, mask = answered(transitions, mask)
        transitions = parted(transitions)
        if jax.tree.leaves(stored):
            transitions, mask = mesh.gathered((transitions, mask), mesh.SLOTS, at=1)
        return playing, store.add(stored, transitions, mask)

    def going_on(carry: tuple[Playing, Stored]) -> Array:
        return mesh.anywhere(tree.any_unbatched(active(carry[0])), mesh.SLOTS)

    (after, stats, _), stored = jax.lax.while_loop(going_on, advance, (begin, store.into))
    return world.left(after, True if slots is None else plan.leaves), stats, stored


def whole_episodes(world: World, policy: Policy, starts: Starts, key: Key, every: int = 20) -> EpisodeStats:
    """Play one episode in each copy, leaves [n]; after so many steps it looks again whether all have ended.

    The return of one that was cut, and is not played again, is NaN.
    """
    nothing: Store[tuple[()]] = Store(every, (), lambda *_: ())
    stats = play(world, policy, Plan(starts, episodes=1), None, key, nothing)[1]
    cut = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), stats.returns)
    return stats if stats.repeats else replace(stats, returns=tree.where(stats.episodes > 0, stats.returns, cut))


def auto_reset(
    world: World, policy: Policy, plan: Plan, slots: EnvSlot | None, key: Key
) -> tuple[
    Playing,
    Callable[[Playing, None], tuple[Playing, tuple[Transition, Bool[Array, " n"]]]],
    Callable[[Playing], Bool[Array, " n"]],
]:
    """What is carried; the scanned step, one interaction of the active slots, the others stay; which are active."""
    n, starts = world.n, plan.starts
    key_starts, key_play = jax.random.split(key)
    group = jnp.arange(n) if isinstance(plan.group, tuple) else plan.group
    keys = jax.random.split(key_play, world.total)[group]
    before = None if slots is None else world.apart(slots, plan.leaves)
    begun, left = starts.begin(world, key_starts, group, before, jnp.asarray(plan.restart))
    begun = world.sending(policy, begun)

    def active(playing: Playing, steps: Any = plan.steps) -> Bool[Array, " n"]:
        _, stats, left = playing
        mask = jnp.broadcast_to(~jnp.asarray(starts.resting(left)), n)
        for done, most in ((stats.done, plan.episodes), (stats.turns, steps)):
            mask = mask if isinstance(most, tuple) else mask & (done < most)
        if world.batch and not isinstance(steps, tuple):  # the last ones are not waited for
            mask &= (mask.sum() >= world.batch) | (jnp.asarray(steps) >= UNLIMITED)
        return mask

    going_on = partial(active, steps=()) if world.batch else active  # which begin another episode

    def step(playing: Playing, _: None) -> tuple[Playing, tuple[Transition, Bool[Array, " n"]]]:
        acts = mask = active(playing)
        slots, stats, left = playing
        keys_now = jax.vmap(jax.random.fold_in)(keys, stats.turns)
        asked = None
        if world.hosted:
            afterwards = replace(stats, steps=stats.steps + 1, episodes=stats.episodes + 1)
            asked = on_host.asked(world, keys, mask, mask & going_on((slots, afterwards, left)), stats.begun)
        after, transition = world.interact(policy, slots, keys_now, asked)
        if world.batch:
            mask &= ~world.waits(after)
            ends = transition.terminated & mask, transition.truncated & mask
            transition = replace(transition, terminated=ends[0], truncated=ends[1])
        lost = world.lost(after, transition) & mask
        there = mask & ~lost
        ended, sums = transition.ended & there, (stats.returns, stats.lengths, stats.info, stats.learned_returns)
        of_episode = tree.where(ended, world.ended(after), tree.zeros(sums))
        returns, lengths, info, learned = jax.tree.map(jnp.add, sums, of_episode)
        counts = {"steps": stats.steps + there, "episodes": stats.episodes + ended, "restarts": stats.restarts + lost}
        if not world.hosted:
            counts["bad_rewards"] = stats.bad_rewards + (lost & ~tree.finite_rows(transition.reward))
        stats = replace(stats, **counts, returns=returns, lengths=lengths, info=info, learned_returns=learned)
        slots = tree.where(acts, after, slots)
        slots = tree.where(ended, hosts.anew(slots), slots) if world.hosted else slots
        begins = (ended | lost) & going_on((slots, stats, left)) if world.hosted else ended | lost
        slots, left = starts.next(world, keys, slots, begins, stats.begun, left)
        transition = replace(transition, weight=there.astype(jnp.float32) + ~mask)
        return (slots, stats, left), (transition, there)

    return (begun, EpisodeStats.zeros(begun, world.ranked), left), step, active


def answered(transitions: Transition, mask: Bool[Array, "steps n"]) -> tuple[Transition, Bool[Array, "steps n"]]:
    """Transitions [steps, n, ...] of which each slot's come first that have an answer or are lost, in their order."""
    order = jnp.argsort(~mask & (transitions.weight > 0), axis=0, stable=True)
    return tree.index((transitions, mask), (order, jnp.arange(mask.shape[1])))


def parted(transitions: Transition) -> Transition:
    """Transitions [steps, n, ...] that end where the next one is lost, which its weight 0 says; without the weights."""
    lost = transitions.weight == 0
    ends = lost | jnp.concatenate([lost[1:], jnp.zeros_like(lost[:1])])
    return replace(transitions, truncated=transitions.truncated | (ends & ~transitions.terminated), weight=())
