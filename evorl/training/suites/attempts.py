"""Whole episodes of a workflow's policy on given levels."""

from typing import Any

import jax

from evorl import tree, vector_env
from evorl.envs.on_level import OnLevel, OnLevelParams, seen_alike, start, with_levels
from evorl.types import Acts, Evolves, Key, Level, State
from evorl.vector_env import EpisodeStats, Same, World, leveled


def attempt(workflow: Acts, state: State, levels: Level, explores: bool, key: Key) -> EpisodeStats:
    """One whole episode on each of levels, leaves [n, ...], as the workflow's environment shows them.

    Rewards are those of what has levels, without the wrappers of rewards around it.
    """
    own, params = with_levels(workflow.env, state.env_params)
    env = seen_alike(workflow.env, OnLevel(leveled(own)))
    key_start, key_play = jax.random.split(key)
    n = tree.size(levels)
    starts = jax.vmap(lambda key, level: start(env, key, level, params))(jax.random.split(key_start, n), levels)
    world = World(env, OnLevelParams(params), workflow.agent.memory(), n)
    return vector_env.whole_episodes(world, jax.vmap(workflow.policy(state, explores)), Same(starts), key_play)


def actor(workflow: Any, state: State = None) -> tuple[Any, Any]:
    """The workflow that acts and its state: of a population that evolves those of the fittest member, the inmost one.

    Without a state the workflow alone, and None.
    """
    while isinstance(workflow, Evolves):
        if state is None:
            workflow = workflow.population.inner
        else:
            workflow, state = workflow.member(state, workflow.fittest(state))
    return workflow, state
