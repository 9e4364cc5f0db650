"""Whole episodes of a workflow's policy on given levels."""

from typing import Any

import jax

from evorl import tree, vector_env
from evorl.envs.on_level import OnLevel, OnLevelParams, find_leveled_env, reset_on_level, wrap_like
from evorl.types import EvolvingWorkflow, Key, Level, PolicyWorkflow, State
from evorl.vector_env import EnvBatch, EpisodeStats, FixedStarts, require_level_env


def run_on_levels(workflow: PolicyWorkflow, state: State, levels: Level, explores: bool, key: Key) -> EpisodeStats:
    """One whole episode on each of levels, leaves [n, ...], as the workflow's environment shows them.

    Rewards are those of what has levels, without the wrappers of rewards around it.
    """
    own, params = find_leveled_env(workflow.env, state.env_params)
    env = wrap_like(workflow.env, OnLevel(require_level_env(own)))
    key_start, key_play = jax.random.split(key)
    n = tree.leading_size(levels)
    starts = jax.vmap(lambda key, level: reset_on_level(env, key, level, params))(
        jax.random.split(key_start, n), levels
    )
    world = EnvBatch(env, OnLevelParams(params), workflow.agent.initial_memory(), n)
    return vector_env.run_episodes(world, jax.vmap(workflow.policy(state, explores)), FixedStarts(starts), key_play)


def find_acting_workflow(workflow: Any, state: State = None) -> tuple[Any, Any]:
    """The workflow that acts and its state: of a population that evolves those of the fittest member, the inmost one.

    Without a state the workflow alone, and None.
    """
    while isinstance(workflow, EvolvingWorkflow):
        if state is None:
            workflow = workflow.population.inner
        else:
            workflow, state = workflow.get_member(state, workflow.fittest_index(state))
    return workflow, state
