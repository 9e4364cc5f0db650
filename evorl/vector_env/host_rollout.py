"""Rollout steps of host environments, where only environments that act or reset are called.

A step may wait for only some of its environments (`env.batch`). An environment that has not answered keeps
the action that was sent; its step is recorded when the answer arrives.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from evorl import tree
from evorl.types import Key, Transition
from evorl.vector_env import hosts
from evorl.vector_env.env_batch import BatchPolicyFn, EnvBatch, choose_actions
from evorl.vector_env.episodes import EnvInstance, EpisodeStats
from evorl.vector_env.host_episodes import HostStarts, derive_episode_keys, reset_on_host
from evorl.vector_env.rollout_plan import UNLIMITED, RolloutCarry, RolloutPlan, RolloutSteps, truncate_before_lost
from evorl.vector_env.starts import ResetStarts


def build_steps(
    world: EnvBatch, policy: BatchPolicyFn, plan: RolloutPlan, envs: EnvInstance | None, key: Key
) -> RolloutSteps:
    """Build the steps of a rollout plan, as `device_rollout.build_steps` does."""
    if isinstance(plan.starts, ResetStarts):
        plan = replace(plan, starts=HostStarts())
    wait_count = hosts.count_waited(world.params, world.num_envs, world.num_envs * world.num_shards)
    key_starts, keys = plan.split_keys(key, world.total_envs)
    if envs is not None:  # an evaluation takes new leases, which it releases at the end
        envs = tree.select(jnp.asarray(plan.releases), hosts.clear_leases(envs), envs)
    begun, starts_state = plan.starts.start_episodes(
        world, key_starts, plan.seed_group, envs, jnp.asarray(plan.restart)
    )
    begun = allocate_pending_step(world, policy, begun)

    def find_active(carry: RolloutCarry, steps: Any = plan.steps) -> Bool[Array, " n"]:
        mask = plan.find_unfinished(*carry[1:], steps)
        if wait_count and steps is not None:  # all stop once fewer are left than a step waits for
            mask &= (mask.sum() >= wait_count) | (jnp.asarray(steps) >= UNLIMITED)
        return mask

    def find_going_on(carry: RolloutCarry) -> Bool[Array, " n"]:
        """Return which environments start another episode if theirs ends."""
        return find_active(carry, None if wait_count else plan.steps)

    def step(carry: RolloutCarry, _: None) -> tuple[RolloutCarry, tuple[Transition, Bool[Array, " n"]]]:
        active = find_active(carry)
        envs, stats, starts_state = carry
        if_ended = replace(stats, steps=stats.steps + 1, episodes=stats.episodes + 1)
        seeds = hosts.seeds_from_keys(derive_episode_keys(keys, stats.num_ended_or_cut + 1))
        share = wait_count / world.num_envs if wait_count else None
        goes_on = active & find_going_on((envs, if_ended, starts_state))
        asked = hosts.HostRequest(active, autoreset=goes_on, seed=seeds, wait_fraction=share)
        after, transition = interact(
            world, policy, envs, jax.vmap(jax.random.fold_in)(keys, stats.step_attempts), asked
        )
        answered = active
        if wait_count:
            answered = active & ~pending_mask(after)
            ends = transition.terminated & answered, transition.truncated & answered
            transition = replace(transition, terminated=ends[0], truncated=ends[1])
        lost = hosts.find_host_state(after.env_state).failed & answered
        valid = answered & ~lost
        ended = transition.is_done & valid
        stats = stats.add_step(valid, ended, lost, world.summarize_episodes(after))
        envs = tree.select(active, after, envs)
        envs = tree.select(ended, hosts.mark_for_reset(envs), envs)
        begins = (ended | lost) & find_going_on((envs, stats, starts_state))
        envs, starts_state = plan.starts.restart_ended(world, keys, envs, begins, stats.num_ended_or_cut, starts_state)
        transition = replace(transition, weight=valid.astype(jnp.float32) + ~answered)
        return (envs, stats, starts_state), (transition, valid)

    def arrange(transitions: Transition, valid: Bool[Array, "steps n"]) -> tuple[Transition, Bool[Array, "steps n"]]:
        if wait_count:
            transitions, valid = sort_by_answer(transitions, valid)
        return truncate_before_lost(transitions), valid

    start = begun, EpisodeStats.zeros(begun, world.ranking_group), starts_state
    releases = jnp.asarray(True if envs is None else plan.releases)
    return RolloutSteps(start, step, find_active, arrange, lambda envs: release_leases(world, envs, releases))


def interact(
    world: EnvBatch, policy: BatchPolicyFn, envs: EnvInstance, keys: Key, asked: hosts.HostRequest
) -> tuple[EnvInstance, Transition]:
    """Step environments on the host as requested, with keys [n]; return them and the transitions.

    An environment that waits for an answer repeats the step that was sent, and stays otherwise unchanged
    until the answer arrives.
    """
    key_act, key_step = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    choice = choose_actions(policy, envs, key_act)
    sent = None
    if envs.pending_step:
        sent = tree.select(pending_mask(envs), envs.pending_step, (*choice, jax.random.key_data(key_step)))
        choice, key_step = sent[:3], jax.random.wrap_key_data(sent[3])
    with jax.named_scope("environment"):
        params = asked.to_env_params(world.params)
        answer = jax.vmap(world.env.step)(key_step, envs.env_state, choice[0], params)
    after, transition = world.record_step(envs, choice, answer)
    if envs.pending_step:
        after = replace(after, pending_step=sent)
        waiting = replace(envs, env_state=hosts.copy_host_states(envs.env_state, after.env_state), pending_step=sent)
        after = tree.select(pending_mask(after), waiting, after)
    return after, transition


def pending_mask(envs: EnvInstance) -> Bool[Array, " n"]:
    """Return which environments have a pending step: an action was sent to the host, and there is no answer yet."""
    host = hosts.find_host_state(envs.env_state)
    assert host.pending is not None
    return host.pending & (host.lease > 0)


def allocate_pending_step(world: EnvBatch, policy: BatchPolicyFn, envs: EnvInstance) -> EnvInstance:
    """Allocate space for pending steps in the environments, if a step may have no answer yet."""
    if not hosts.has_late_answers(world.params) or envs.pending_step:
        return envs
    keys = jax.random.split(jax.random.key(0), world.num_envs)
    sent = jax.eval_shape(lambda: (*choose_actions(policy, envs, keys), jax.random.key_data(keys)))
    return replace(envs, pending_step=tree.zeros_like(sent))


def release_leases(world: EnvBatch, envs: EnvInstance, where: Bool[Array, ""]) -> EnvInstance:
    """Release all environments on the host if `where` [] is true, and return the environments without leases then."""
    lease, keys = hosts.get_leases(envs.env_state), jax.random.split(jax.random.key(0), world.num_envs)
    reset_on_host(world, keys, hosts.HostRequest((lease != 0) & where, lease, where))
    return tree.select(where, hosts.clear_leases(envs), envs)


def sort_by_answer(transitions: Transition, mask: Bool[Array, "steps n"]) -> tuple[Transition, Bool[Array, "steps n"]]:
    """Sort transitions [steps, n, ...] of each environment: answered or lost steps first, in their order."""
    order = jnp.argsort(~mask & (transitions.weight > 0), axis=0, stable=True)
    return tree.index((transitions, mask), (order, jnp.arange(mask.shape[1])))
