"""The steps of a rollout of environments on the host, where only those are touched that act or begin an episode.

A step may wait for some of its environments alone (`env.batch`): one that has not answered keeps the action that it has
sent, and its step comes when the answer does.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from evorl import tree
from evorl.types import Key, Transition
from evorl.vector_env import host_episodes, hosts
from evorl.vector_env.env_batch import BatchPolicyFn, EnvBatch
from evorl.vector_env.episodes import EnvInstance, EpisodeStats
from evorl.vector_env.rollout_plan import UNLIMITED, RolloutCarry, RolloutPlan, RolloutSteps, truncate_before_lost


def build_steps(
    world: EnvBatch, policy: BatchPolicyFn, plan: RolloutPlan, envs: EnvInstance | None, key: Key
) -> RolloutSteps:
    """Return the steps of a plan, as `device_rollout.build_steps` does."""
    key_starts, group, keys = plan.split_keys(key, world.total_envs)
    before = None if envs is None else world.drop_leases(envs, plan.releases)
    begun, left = plan.starts.start_episodes(world, key_starts, group, before, jnp.asarray(plan.restart))
    begun = world.allocate_pending_step(policy, begun)

    def find_active(carry: RolloutCarry, steps: Any = plan.steps) -> Bool[Array, " n"]:
        mask = plan.find_unfinished(*carry[1:], steps)
        if world.wait_count and not isinstance(steps, tuple):  # once fewer are left than a step waits for, all stop
            mask &= (mask.sum() >= world.wait_count) | (jnp.asarray(steps) >= UNLIMITED)
        return mask

    def find_going_on(carry: RolloutCarry) -> Bool[Array, " n"]:
        """Return which environments begin another episode where theirs ends."""
        return find_active(carry, () if world.wait_count else plan.steps)

    def step(carry: RolloutCarry, _: None) -> tuple[RolloutCarry, tuple[Transition, Bool[Array, " n"]]]:
        active = find_active(carry)
        envs, stats, left = carry
        if_ended = replace(stats, steps=stats.steps + 1, episodes=stats.episodes + 1)
        goes_on = active & find_going_on((envs, if_ended, left))
        asked = host_episodes.request_step(world, keys, active, goes_on, stats.num_ended_or_cut)
        after, transition = world.interact(policy, envs, jax.vmap(jax.random.fold_in)(keys, stats.step_attempts), asked)
        answered = active
        if world.wait_count:
            answered = active & ~world.pending_mask(after)
            ends = transition.terminated & answered, transition.truncated & answered
            transition = replace(transition, terminated=ends[0], truncated=ends[1])
        lost = world.find_lost_steps(after, transition) & answered
        counts = answered & ~lost
        ended = transition.is_done & counts
        stats = stats.add_step(counts, ended, lost, world.summarize_episodes(after))
        envs = tree.select(active, after, envs)
        envs = tree.select(ended, hosts.mark_for_reset(envs), envs)
        begins = (ended | lost) & find_going_on((envs, stats, left))
        envs, left = plan.starts.restart_ended(world, keys, envs, begins, stats.num_ended_or_cut, left)
        transition = replace(transition, weight=counts.astype(jnp.float32) + ~answered)
        return (envs, stats, left), (transition, counts)

    def arrange(transitions: Transition, counts: Bool[Array, "steps n"]) -> tuple[Transition, Bool[Array, "steps n"]]:
        if world.wait_count:
            transitions, counts = sort_by_answer(transitions, counts)
        return truncate_before_lost(transitions), counts

    start = begun, EpisodeStats.zeros(begun, world.ranking_group), left
    return RolloutSteps(start, step, find_active, arrange)


def sort_by_answer(transitions: Transition, mask: Bool[Array, "steps n"]) -> tuple[Transition, Bool[Array, "steps n"]]:
    """Sort transitions [steps, n, ...]: of each environment those with an answer or lost come first, in their order."""
    order = jnp.argsort(~mask & (transitions.weight > 0), axis=0, stable=True)
    return tree.index((transitions, mask), (order, jnp.arange(mask.shape[1])))
