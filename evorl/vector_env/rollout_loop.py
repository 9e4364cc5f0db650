"""Rollout loop: vectorized environments act until each has completed its episodes or steps.

A policy acts for n environments at once: (obs [n], memory [n], keys [n]) -> (action, memory, extras), leaves
[n].
"""

from dataclasses import replace
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from evorl import mesh, tree
from evorl.types import Key
from evorl.vector_env import device_rollout, host_rollout, hosts
from evorl.vector_env.env_batch import BatchPolicyFn, EnvBatch
from evorl.vector_env.episodes import EnvInstance, EpisodeStats
from evorl.vector_env.rollout_plan import EpisodeStarts, RolloutCarry, RolloutPlan, RolloutSteps, TransitionStore

Stored = TypeVar("Stored")


def rollout(
    world: EnvBatch,
    policy: BatchPolicyFn,
    plan: RolloutPlan,
    envs: EnvInstance | None,
    key: Key,
    store: TransitionStore[Stored],
) -> tuple[EnvInstance, EpisodeStats, Stored]:
    """Run a rollout plan, from the state of envs, or from new starts if it restarts or envs is None.

    The rollout ends at most store.scan_length steps after the last environment completes. Memory use does not grow
    with the length of episodes.
    """
    steps = build_steps(world, policy, plan, envs, key)

    def run_chunk(carry: tuple[RolloutCarry, Stored]) -> tuple[RolloutCarry, Stored]:
        playing, stored = carry
        playing, (transitions, valid) = jax.lax.scan(steps.step, playing, length=store.scan_length)
        transitions, valid = steps.arrange(transitions, valid)
        if jax.tree.leaves(stored):
            transitions, valid = mesh.gather_shards((transitions, valid), mesh.ENVS, at=1)
        return playing, store.add(stored, transitions, valid)

    def is_running(carry: tuple[RolloutCarry, Stored]) -> Array:
        return mesh.any_device(tree.any_unbatched(steps.find_active(carry[0])), mesh.ENVS)

    (after, stats, _), stored = jax.lax.while_loop(is_running, run_chunk, (steps.begin, store.buffer))
    return steps.finish(after), stats, stored


def build_steps(
    world: EnvBatch, policy: BatchPolicyFn, plan: RolloutPlan, envs: EnvInstance | None, key: Key
) -> RolloutSteps:
    """Build the steps of a plan for the place of the environments: device or host."""
    where = device_rollout if hosts.find_host_params(world.params) is None else host_rollout
    return where.build_steps(world, policy, plan, envs, key)


def run_episodes(
    world: EnvBatch, policy: BatchPolicyFn, starts: EpisodeStarts, key: Key, every: int = 20
) -> EpisodeStats:
    """Run one episode in each copy, leaves [n]; test every `every` steps whether all have ended.

    The return is NaN if an episode was cut and not replaced by another.
    """
    nothing: TransitionStore[None] = TransitionStore(every, None, lambda *_: None)
    stats = rollout(world, policy, RolloutPlan(starts, episodes=1), None, key, nothing)[1]
    cut = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), stats.returns)
    return (
        stats
        if stats.retries_cut_episodes
        else replace(stats, returns=tree.select(stats.episodes > 0, stats.returns, cut))
    )
