"""Complete episodes of the policy of a workflow on given levels."""

from typing import Any

import jax

from evorl import tree, vector_env
from evorl.envs.on_level import OnLevel, OnLevelParams, find_leveled_env, reset_on_level, wrap_like
from evorl.types import EvolvingWorkflow, Key, Level, PolicyWorkflow, State
from evorl.vector_env import EnvBatch, EpisodeStats, FixedStarts, require_level_env


def run_on_levels(workflow: PolicyWorkflow, state: State, levels: Level, explores: bool, key: Key) -> EpisodeStats:
    """Run one complete episode on each level, in the environment of the workflow without its reward wrappers.

    The leaves of `levels` have shape [n, ...]. Returns are in the rewards of the inner environment that has
    the levels.
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
    """Return the workflow that acts and its state; for an evolving population, those of its fittest member.

    Populations may be nested; the search continues down to the innermost workflow. Without a state, the
    returned state is None.
    """
    while isinstance(workflow, EvolvingWorkflow):
        if state is None:
            workflow = workflow.population.inner
        else:
            workflow, state = workflow.get_member(state, workflow.fittest_index(state))
    return workflow, state
