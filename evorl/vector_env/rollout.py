"""Acting in environments: many at once, until each has had its episodes or steps.

A policy acts for n environments at once: (obs [n], memory [n], keys [n]) -> (action, memory, extras), leaves [n].
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import mesh, tree
from evorl.errors import OptionError, require, unknown
from evorl.types import Env, Key, Level, Leveled, Memory, Summarizes, TimeStep, Transition
from evorl.vector_env.episodes import SUMMARIES, EnvSlot, EpisodeStats

Policy = Callable[[Any, Memory, Key], tuple[Any, Memory, dict[str, Any]]]
Stored = TypeVar("Stored")
UNLIMITED = jnp.iinfo(jnp.int32).max  # episodes or steps that no play reaches


@dataclass(frozen=True)
class World:
    """n copies of an environment with the same params, and the memory with which an episode begins.

    Of several devices each has n of `total`.
    """

    env: Env
    params: Any
    memory: Memory
    n: int
    shards: int = 1

    @property
    def total(self) -> int:
        """Copies on all devices."""
        return self.n * self.shards

    def reset(self, keys: Key) -> tuple[Any, Any]:
        """A start for each of keys [...], a state and an observation, leaves [..., ...]."""
        if keys.ndim:
            return jax.vmap(self.reset)(keys)
        with jax.named_scope("environment"):
            return self.env.reset(keys, self.params)

    def reset_to(self, keys: Key, levels: Level) -> tuple[Any, Any]:
        """A start on each of levels, leaves [n, ...]; raises OptionError where the environment has none."""
        with jax.named_scope("environment"):
            return jax.vmap(leveled(self.env).reset_to)(keys, levels)

    @property
    def summary(self) -> dict[str, str]:
        """What of its info the environment summarizes, and how."""
        return dict(self.env.episode_info) if isinstance(self.env, Summarizes) else {}

    def timestep(self, env_state: Any) -> TimeStep:
        """What an action in a state, leaves [n, ...], is answered, by its shapes."""
        step = jax.vmap(self.env.step, (0, 0, 0, None))

        def one_step() -> TimeStep:
            keys = jax.random.split(jax.random.key(0), self.n)
            return step(keys, env_state, jax.vmap(self.env.action_space.sample)(keys), self.params)[1]

        return jax.eval_shape(one_step)

    def slots(self, starts: tuple[Any, Any]) -> EnvSlot:
        """The slots at starts, leaves [n, ...]; raises OptionError where a summary is of what is not there."""
        seen = self.timestep(starts[0])
        for name, how in self.summary.items():
            require(how in SUMMARIES, f"episode_info[{name!r}]", how, f"must be one of {', '.join(SUMMARIES)}")
            if name not in seen.info:
                raise unknown("episode_info", name, seen.info)
        none = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (seen.reward, seen.info))
        info = {name: none[1][name] for name in self.summary}
        return EnvSlot(*starts, tree.broadcast(self.memory, self.n), none[0], jnp.zeros(self.n, jnp.int32), info)

    def restart(self, slots: EnvSlot, starts: tuple[Any, Any], where: Bool[Array, "*n"]) -> EnvSlot:
        """The slots, at starts, leaves [n, ...], where so, [n] or []."""
        none = tree.zeros((slots.episode_return, slots.episode_length, slots.episode_info))
        return tree.where(where, EnvSlot(*starts, tree.broadcast(self.memory, self.n), *none), slots)

    def interact(self, policy: Policy, slots: EnvSlot, keys: Key) -> tuple[EnvSlot, Transition]:
        """One step of all slots, keys [n]; episodes that end are left at their end."""
        key_act, key_step = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        with jax.named_scope("policy"):
            action, memory, extras = policy(slots.obs, slots.memory, key_act)
        with jax.named_scope("environment"):
            step = jax.vmap(self.env.step, (0, 0, 0, None))
            env_state, timestep = step(key_step, slots.env_state, action, self.params)
        outcome = timestep.reward, timestep.obs, timestep.terminated, timestep.truncated
        transition = Transition(slots.obs, action, *outcome, extras, memory=slots.memory)
        returns = jax.tree.map(jnp.add, slots.episode_return, timestep.reward)
        info = {
            name: timestep.info[name].astype(jnp.float32) + (0 if how == "last" else slots.episode_info[name])
            for name, how in self.summary.items()
        }
        return EnvSlot(env_state, timestep.obs, memory, returns, slots.episode_length + 1, info), transition

    def ended(self, slots: EnvSlot) -> tuple[Any, Any, Any]:
        """The return, the length and the summary of episodes that end here, leaves [n, ...]."""
        length = slots.episode_length
        info = {
            name: jax.vmap(jnp.divide)(total, length) if self.summary[name] == "mean" else total
            for name, total in slots.episode_info.items()
        }
        return slots.episode_return, length, info


def leveled(env: Env) -> Leveled:
    """The environment; raises OptionError where its episodes are not played on levels."""
    if not isinstance(env, Leveled):
        raise OptionError(f"env={type(env).__name__}: has no levels (evorl.types.Leveled)")
    return env


class Starts(Protocol):
    """Where episodes begin: a value. What it has `left` is carried from step to step."""

    def begin(self, world: World, key: Key, group: Int[Array, " n"]) -> tuple[tuple[Any, Any], Any]:
        """The first start of each slot, the same within a group, leaves [n, ...], and what is left."""
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
        if jax.tree.leaves(stored):
            transitions, mask = mesh.gathered((transitions, mask), mesh.SLOTS, at=1)
        return playing, store.add(stored, transitions, mask)

    def going_on(carry: tuple[Playing, Stored]) -> Array:
        return mesh.anywhere(tree.any_unbatched(active(carry[0])), mesh.SLOTS)

    (slots, stats, _), stored = jax.lax.while_loop(going_on, advance, (begin, store.into))
    return slots, stats, stored


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
    first, left = starts.begin(world, key_starts, group)
    slots = world.slots(first) if slots is None else world.restart(slots, first, jnp.asarray(plan.restart))

    def active(playing: Playing) -> Bool[Array, " n"]:
        _, stats, left = playing
        mask = jnp.broadcast_to(~jnp.asarray(starts.resting(left)), n)
        for done, most in ((stats.episodes, plan.episodes), (stats.steps, plan.steps)):
            mask = mask if isinstance(most, tuple) else mask & (done < most)
        return mask

    def step(playing: Playing, _: None) -> tuple[Playing, tuple[Transition, Bool[Array, " n"]]]:
        mask = active(playing)
        slots, stats, left = playing
        keys_now = jax.vmap(jax.random.fold_in)(keys, stats.steps)
        after, transition = world.interact(policy, slots, keys_now)
        ended = transition.ended & mask
        sums = stats.returns, stats.lengths, stats.info
        of_episode = tree.where(ended, world.ended(after), tree.zeros(sums))
        stats = EpisodeStats(stats.steps + mask, stats.episodes + ended, *jax.tree.map(jnp.add, sums, of_episode))
        slots, left = starts.next(world, keys, tree.where(mask, after, slots), ended, stats.episodes, left)
        return (slots, stats, left), (transition, mask)

    return (slots, EpisodeStats.zeros(slots), left), step, active
