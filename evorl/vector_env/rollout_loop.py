"""Acting in environments: many at once, until each has had its episodes or steps.

A policy acts for n environments at once: (obs [n], memory [n], keys [n]) -> (action, memory, extras), leaves [n].
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int
from typing_extensions import Protocol, runtime_checkable

from evorl import mesh, tree
from evorl.types import Key, Transition
from evorl.vector_env import host_episodes, hosts
from evorl.vector_env.env_batch import BatchPolicyFn, EnvBatch
from evorl.vector_env.episodes import EnvInstance, EpisodeStats

Stored = TypeVar("Stored")
UNLIMITED = jnp.iinfo(jnp.int32).max  # episodes or steps that no play reaches


@runtime_checkable
class EpisodeStarts(Protocol):
    """The starts of episodes, as a value of a plan. What is `left` of them is carried from step to step."""

    def start_episodes(
        self, world: EnvBatch, key: Key, group: Int[Array, " n"], envs: EnvInstance | None, restart: Bool[Array, ""]
    ) -> tuple[EnvInstance, Any]:
        """Return the environments, at their first start where they restart, one for each group, and what is left."""
        ...

    def restart_ended(
        self,
        world: EnvBatch,
        keys: Key,
        envs: EnvInstance,
        ended: Bool[Array, " n"],
        episodes: Int[Array, " n"],
        left: Any,
    ) -> tuple[EnvInstance, Any]:
        """Return the environments with a new start where ended, each after so many episodes, and what is left."""
        ...

    def idle_mask(self, left: Any) -> Bool[Array, " n"] | bool:
        """Return which environments have found no start, and wait."""
        ...


@struct.dataclass
class RolloutPlan:
    """A plan for n environments. A workflow makes it; a workflow around that may change it before it is played."""

    starts: Any  # an EpisodeStarts
    restart: Any = True  # [] bool: from new starts, rather than on from where the environments are
    episodes: Any = ()  # [n] or [] int32: of each environment; () for no end
    steps: Any = ()  # [] int32: of each environment; () for no end
    seed_group: Any = ()  # [n] int32 below n: those of the same have common random numbers; () for each its own
    params: Any = ()  # leaves [actors, ...]: by whom the environments act, as many each, side by side
    explores: Any = ()  # [] or [actors] bool: whether they explore; () for never
    random_actions: Any = ()  # [] bool: whether they act at random instead; () for never
    stores: Any = ()  # [] bool: whether what they see is stored, where that is a choice
    releases: Any = False  # [] bool: whether the environments are of no use afterwards, as after an evaluation

    def local_shard(self, n: int, shards: int) -> "RolloutPlan":
        """Return the part of the plan for this device, where n environments are spread over several, else all of it."""
        if shards == 1:
            return self
        group = jnp.arange(n) if isinstance(self.seed_group, tuple) else self.seed_group

        def shard_leaf(x: Any) -> Any:
            return mesh.local_shard(x, mesh.ENVS, len(x) // shards) if jnp.ndim(x) and len(x) > 1 else x

        params, explores, episodes, group = jax.tree.map(shard_leaf, (self.params, self.explores, self.episodes, group))
        return replace(self, params=params, explores=explores, episodes=episodes, seed_group=group)


@dataclass(frozen=True)
class TransitionStore(Generic[Stored]):
    """A buffer of transitions: after `chunk` steps it is add(buffer, transitions [chunk, n, ...], mask [chunk, n])."""

    chunk: int
    buffer: Stored
    add: Callable[[Stored, Transition, Bool[Array, "chunk n"]], Stored]


RolloutCarry = tuple[EnvInstance, EpisodeStats, Any]  # what a play carries; the last is what the starts have left


def rollout(
    world: EnvBatch,
    policy: BatchPolicyFn,
    plan: RolloutPlan,
    envs: EnvInstance | None,
    key: Key,
    store: TransitionStore[Stored],
) -> tuple[EnvInstance, EpisodeStats, Stored]:
    """Play a plan, from the state of envs or, where it restarts or envs is None, from new starts.

    It ends within store.chunk steps of the last environment's end; memory does not grow with the length of episodes.
    """
    begin, step, active = build_step(world, policy, plan, envs, key)

    def run_chunk(carry: tuple[RolloutCarry, Stored]) -> tuple[RolloutCarry, Stored]:
        playing, stored = carry
        playing, (transitions, mask) = jax.lax.scan(step, playing, length=store.chunk)
        if world.wait_count:
            transitions, mask = sort_by_answer(transitions, mask)
        transitions = truncate_before_lost(transitions)
        if jax.tree.leaves(stored):
            transitions, mask = mesh.gather_shards((transitions, mask), mesh.ENVS, at=1)
        return playing, store.add(stored, transitions, mask)

    def is_running(carry: tuple[RolloutCarry, Stored]) -> Array:
        return mesh.any_device(tree.any_unbatched(active(carry[0])), mesh.ENVS)

    (after, stats, _), stored = jax.lax.while_loop(is_running, run_chunk, (begin, store.buffer))
    return world.release_leases(after, True if envs is None else plan.releases), stats, stored


def run_episodes(
    world: EnvBatch, policy: BatchPolicyFn, starts: EpisodeStarts, key: Key, every: int = 20
) -> EpisodeStats:
    """Play one episode in each copy, leaves [n]; after so many steps it looks again whether all have ended.

    The return of one that was cut, and is not played again, is NaN.
    """
    nothing: TransitionStore[tuple[()]] = TransitionStore(every, (), lambda *_: ())
    stats = rollout(world, policy, RolloutPlan(starts, episodes=1), None, key, nothing)[1]
    cut = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), stats.returns)
    return (
        stats
        if stats.retries_cut_episodes
        else replace(stats, returns=tree.select(stats.episodes > 0, stats.returns, cut))
    )


def build_step(
    world: EnvBatch, policy: BatchPolicyFn, plan: RolloutPlan, envs: EnvInstance | None, key: Key
) -> tuple[
    RolloutCarry,
    Callable[[RolloutCarry, None], tuple[RolloutCarry, tuple[Transition, Bool[Array, " n"]]]],
    Callable[[RolloutCarry], Bool[Array, " n"]],
]:
    """Return what a scan carries, its step, and which environments are active.

    A step is an interaction of the active environments; the others stay as they are.
    """
    n, starts = world.num_envs, plan.starts
    key_starts, key_play = jax.random.split(key)
    group = jnp.arange(n) if isinstance(plan.seed_group, tuple) else plan.seed_group
    keys = jax.random.split(key_play, world.total_envs)[group]
    before = None if envs is None else world.drop_leases(envs, plan.releases)
    begun, left = starts.start_episodes(world, key_starts, group, before, jnp.asarray(plan.restart))
    begun = world.allocate_pending_step(policy, begun)

    def active(playing: RolloutCarry, steps: Any = plan.steps) -> Bool[Array, " n"]:
        _, stats, left = playing
        mask = jnp.broadcast_to(~jnp.asarray(starts.idle_mask(left)), n)
        for done, most in ((stats.num_completed, plan.episodes), (stats.step_attempts, steps)):
            mask = mask if isinstance(most, tuple) else mask & (done < most)
        if world.wait_count and not isinstance(steps, tuple):  # the last ones are not waited for
            mask &= (mask.sum() >= world.wait_count) | (jnp.asarray(steps) >= UNLIMITED)
        return mask

    going_on = partial(active, steps=()) if world.wait_count else active  # which begin another episode

    def step(playing: RolloutCarry, _: None) -> tuple[RolloutCarry, tuple[Transition, Bool[Array, " n"]]]:
        acts = mask = active(playing)
        envs, stats, left = playing
        keys_now = jax.vmap(jax.random.fold_in)(keys, stats.step_attempts)
        asked = None
        if world.hosted:
            afterwards = replace(stats, steps=stats.steps + 1, episodes=stats.episodes + 1)
            asked = host_episodes.request_step(
                world, keys, mask, mask & going_on((envs, afterwards, left)), stats.num_ended_or_cut
            )
        after, transition = world.interact(policy, envs, keys_now, asked)
        if world.wait_count:
            mask &= ~world.pending_mask(after)
            ends = transition.terminated & mask, transition.truncated & mask
            transition = replace(transition, terminated=ends[0], truncated=ends[1])
        lost = world.find_lost_steps(after, transition) & mask
        there = mask & ~lost
        ended, sums = transition.is_done & there, (stats.returns, stats.lengths, stats.info, stats.learned_returns)
        of_episode = tree.select(ended, world.summarize_episodes(after), tree.zeros_like(sums))
        returns, lengths, info, learned = jax.tree.map(jnp.add, sums, of_episode)
        counts = {"steps": stats.steps + there, "episodes": stats.episodes + ended, "restarts": stats.restarts + lost}
        if not world.hosted:
            counts["bad_rewards"] = stats.bad_rewards + (lost & ~tree.find_finite_rows(transition.reward))
        stats = replace(stats, **counts, returns=returns, lengths=lengths, info=info, learned_returns=learned)
        envs = tree.select(acts, after, envs)
        envs = tree.select(ended, hosts.mark_for_reset(envs), envs) if world.hosted else envs
        begins = (ended | lost) & going_on((envs, stats, left)) if world.hosted else ended | lost
        envs, left = starts.restart_ended(world, keys, envs, begins, stats.num_ended_or_cut, left)
        transition = replace(transition, weight=there.astype(jnp.float32) + ~mask)
        return (envs, stats, left), (transition, there)

    return (begun, EpisodeStats.zeros(begun, world.ranking_group), left), step, active


def sort_by_answer(transitions: Transition, mask: Bool[Array, "steps n"]) -> tuple[Transition, Bool[Array, "steps n"]]:
    """Sort transitions [steps, n, ...]: of each environment those with an answer or lost come first, in their order."""
    order = jnp.argsort(~mask & (transitions.weight > 0), axis=0, stable=True)
    return tree.index((transitions, mask), (order, jnp.arange(mask.shape[1])))


def truncate_before_lost(transitions: Transition) -> Transition:
    """Truncate transitions [steps, n, ...] where the next one is lost (its weight is 0), and drop the weights."""
    lost = transitions.weight == 0
    ends = lost | jnp.concatenate([lost[1:], jnp.zeros_like(lost[:1])])
    return replace(transitions, truncated=transitions.truncated | (ends & ~transitions.terminated), weight=())
