"""Rollout steps of JAX environments: act, step, count, and start the next episode."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from evorl import tree
from evorl.types import Key, Transition
from evorl.vector_env.env_batch import BatchPolicyFn, EnvBatch
from evorl.vector_env.episodes import EnvInstance, EpisodeStats
from evorl.vector_env.rollout_plan import RolloutCarry, RolloutPlan, RolloutSteps, truncate_before_lost


def build_steps(
    world: EnvBatch, policy: BatchPolicyFn, plan: RolloutPlan, envs: EnvInstance | None, key: Key
) -> RolloutSteps:
    """Build the steps of a rollout plan, from the state of envs, or from new starts if it restarts or envs is None.

    In a step, the active environments interact; the others stay unchanged.
    """
    key_starts, keys = plan.split_keys(key, world.total_envs)
    begun, starts_state = plan.starts.start_episodes(
        world, key_starts, plan.seed_group, envs, jnp.asarray(plan.restart)
    )

    def find_active(carry: RolloutCarry) -> Bool[Array, " n"]:
        return plan.find_unfinished(*carry[1:], plan.steps)

    def step(carry: RolloutCarry, _: None) -> tuple[RolloutCarry, tuple[Transition, Bool[Array, " n"]]]:
        active = find_active(carry)
        envs, stats, starts_state = carry
        after, transition = world.interact(policy, envs, jax.vmap(jax.random.fold_in)(keys, stats.step_attempts))
        lost = active & ~tree.find_finite_rows((transition.obs, transition.reward, transition.next_obs))
        valid = active & ~lost
        ended = transition.is_done & valid
        stats = stats.add_step(valid, ended, lost, world.summarize_episodes(after))
        stats = replace(stats, bad_rewards=stats.bad_rewards + (lost & ~tree.find_finite_rows(transition.reward)))
        envs = tree.select(active, after, envs)
        envs, starts_state = plan.starts.restart_ended(
            world, keys, envs, ended | lost, stats.num_ended_or_cut, starts_state
        )
        transition = replace(transition, weight=valid.astype(jnp.float32) + ~active)
        return (envs, stats, starts_state), (transition, valid)

    return RolloutSteps(
        (begun, EpisodeStats.zeros(begun, world.ranking_group), starts_state),
        step,
        find_active,
        lambda transitions, valid: (truncate_before_lost(transitions), valid),
        lambda envs: envs,
    )
