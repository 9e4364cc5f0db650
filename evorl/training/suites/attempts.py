"""Whole episodes of a workflow's policy on given levels."""

from typing import Any

import jax

from evorl import tree, vector_env
from evorl.envs.on_level import OnLevel, OnLevelParams, seen_alike, start, with_levels
from evorl.training.episodes import CHUNK
from evorl.types import Acts, Evolves, Key, Level, State
from evorl.vector_env import EpisodeStats, Plan, Same, Store, World, leveled


def attempt(workflow: Acts, state: State, levels: Level, explores: bool, key: Key) -> EpisodeStats:
    """One whole episode on each of levels, leaves [n, ...], as the workflow's environment shows them.

    Rewards are those of what has levels, without the wrappers of rewards around it.
    """
    own, params = with_levels(workflow.env, state.env_params)
    env = seen_alike(workflow.env, OnLevel(leveled(own)))
    key_start, key_play = jax.random.split(key)
    n = tree.size(levels)
    starts = jax.vmap(lambda key, level: start(env, key, level, params))(jax.random.split(key_start, n), levels)
    world, store = World(env, OnLevelParams(params), workflow.agent.memory(), n), Store(CHUNK, (), lambda *_: ())
    policy = jax.vmap(workflow.policy(state, explores))
    return vector_env.play(world, policy, Plan(Same(starts), episodes=1), None, key_play, store)[1]


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
