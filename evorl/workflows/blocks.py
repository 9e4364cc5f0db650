"""Rollouts of a population, in blocks if it does not fit in memory, and with individuals generated from seeds."""

from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

from evorl import tree
from evorl.normalize import RunningStatistics
from evorl.types import Key, Metrics, Params, SeedEvolver, Transition
from evorl.vector_env import Behaviour, EpisodeStats, Rollout, RolloutPlan, TransitionStore

Block: TypeAlias = tuple[Key, Params, Array]  # key, individuals, and number of episodes of each environment


def rollout_blocks(workflow: Any, state: Any, plan: RolloutPlan, key: Key) -> Rollout:
    """Run the rollout of a population block by block; it stores the observation statistics after the rollout."""
    common, blocks = split_plan(workflow, plan, key)
    run = lambda statistics, block: rollout_block(workflow, state, common, block, statistics)  # noqa: E731
    statistics, (stats, described) = jax.lax.scan(run, state.obs_statistics, blocks)
    return Rollout(plan, None, tree.merge_axes(stats), statistics, tree.mean(described))


def split_plan(workflow: Any, plan: RolloutPlan, key: Key) -> tuple[RolloutPlan, Block]:
    """Return what the plans of all blocks have in common, and what each block has of its own, leaves [blocks, ...]."""
    num_envs, blocks = workflow.vector_env.num_envs, workflow.num_blocks
    assert plan.episodes is not None
    episodes = jnp.broadcast_to(plan.episodes, workflow.num_envs)
    split = lambda x: x.reshape(blocks, len(x) // blocks, *x.shape[1:])  # noqa: E731
    keys = jax.random.split(key, blocks)
    if plan.seed_group is not None:  # blocks that play the same episodes use the key of the first block
        shared = plan.seed_group[-1] < num_envs
        keys = keys[jnp.where(shared, 0, jnp.arange(blocks))]
        plan = replace(plan, seed_group=plan.seed_group[:num_envs])
    return plan, (keys, jax.tree.map(split, plan.params), split(episodes))


def rollout_block(
    workflow: Any, state: Any, common: RolloutPlan, block: Block, statistics: RunningStatistics | None
) -> tuple[RunningStatistics | None, tuple[EpisodeStats, Metrics]]:
    """Run the rollout of one block.

    Args:
        workflow: Workflow with a population.
        state: State of the workflow.
        common: Plan that all blocks have in common.
        block: Key, individuals and episodes of this block.
        statistics: Observation statistics to which the observations are added; None without.

    Returns:
        The statistics, and the episode statistics and the state metrics of the block.
    """

    def update_statistics(
        statistics: RunningStatistics | None, transitions: Transition, mask: Array
    ) -> RunningStatistics | None:
        """Return the statistics with the finite observations of a chunk, or None without statistics."""
        if statistics is None:
            return None
        obs = tree.merge_axes(transitions.obs)
        return statistics.update(obs, mask.reshape(-1) & tree.find_finite_rows(obs))

    key, params, episodes = block
    plan = replace(common, params=params, episodes=episodes)
    store = TransitionStore(workflow.chunk, statistics, update_statistics)
    behaviour = make_member_behaviour(workflow, state)
    played = workflow.vector_env.rollout(behaviour, state.env_params, plan, None, key, store)
    return played.stored, (played.stats, played.state_metrics)


def make_member_behaviour(workflow: Any, state: Any) -> Behaviour:
    """Return the behavior of individuals, which a SeedEvolver generates from seeds during the rollout."""
    behaviour, evolver = workflow.behaviour(state), workflow.evolver
    if not isinstance(evolver, SeedEvolver):
        return behaviour
    draw = lambda genomes: evolver.materialize(state.evolver, genomes)  # noqa: E731
    express = lambda held: evolver.to_params(state.evolver, held)  # noqa: E731
    return replace(behaviour, materialize=draw, decode_params=express)
