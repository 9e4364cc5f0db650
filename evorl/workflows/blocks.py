"""How a population plays: block by block, where it does not fit in memory, and drawn as it plays, where it is seeds."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from evorl import tree
from evorl.normalize import RunningStatistics
from evorl.types import Key, Metrics, Params, SeedEvolver, Transition
from evorl.vector_env import Behaviour, EpisodeStats, Rollout, RolloutPlan, TransitionStore


def rollout_blocks(workflow: Any, state: Any, plan: RolloutPlan, key: Key) -> Rollout:
    """What the members of a population played, and stored as the statistics of observations after it."""
    num_envs, blocks = workflow.vector_env.num_envs, workflow.num_blocks
    assert plan.episodes is not None
    episodes = jnp.broadcast_to(plan.episodes, workflow.num_envs)
    apart = jax.tree.map(lambda x: x.reshape(blocks, -1, *x.shape[1:]), (plan.params, episodes))
    keys = jax.random.split(key, blocks)
    if plan.seed_group is not None:  # which another block than the first may play too
        shared = plan.seed_group[-1] < num_envs
        keys = keys[jnp.where(shared, 0, jnp.arange(blocks))]
        plan = replace(plan, seed_group=plan.seed_group[:num_envs])
    behaviour = make_member_behaviour(workflow, state)

    def update_statistics(
        statistics: RunningStatistics | None, transitions: Transition, mask: Array
    ) -> RunningStatistics | None:
        """The statistics with a chunk's observations that are finite, where they are kept."""
        if statistics is None:
            return None
        obs = tree.merge_axes(transitions.obs)
        return statistics.update(obs, mask.reshape(-1) & tree.find_finite_rows(obs))

    def rollout_block(
        statistics: RunningStatistics | None, block: tuple[Key, tuple[Params, Array]]
    ) -> tuple[RunningStatistics | None, tuple[EpisodeStats, Metrics]]:
        key, (params, episodes) = block
        todo = replace(plan, params=params, episodes=episodes)
        store = TransitionStore(workflow.chunk, statistics, update_statistics)
        played = workflow.vector_env.rollout(behaviour, state.env_params, todo, None, key, store)
        return played.stored, (played.stats, played.state_metrics)

    statistics, (stats, described) = jax.lax.scan(rollout_block, state.obs_statistics, (keys, apart))
    return Rollout(plan, None, tree.merge_axes(stats), statistics, tree.mean(described))


def make_member_behaviour(workflow: Any, state: Any) -> Behaviour:
    """How members act, which are drawn as they play where the evolver has seeds of them."""
    behaviour, evolver = workflow.behaviour(state), workflow.evolver
    if not isinstance(evolver, SeedEvolver):
        return behaviour
    draw = lambda genomes: evolver.materialize(state.evolver, genomes)  # noqa: E731
    express = lambda held: evolver.to_params(state.evolver, held)  # noqa: E731
    return replace(behaviour, materialize=draw, decode_params=express)
