"""How a population plays: block by block, where it does not fit in memory, and drawn as it plays, where it is seeds."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from evorl import tree
from evorl.types import DrawsMembers, Key, Params, Transition
from evorl.vector_env import Behaviour, Plan, Played, Store


def play(workflow: Any, state: Any, plan: Plan, key: Key) -> Played:
    """What the members of a population played, and stored as the statistics of observations after it."""
    slots, blocks = workflow.vector_env.num_slots, workflow.blocks
    episodes = jnp.broadcast_to(plan.episodes, workflow.num_slots)
    apart = jax.tree.map(lambda x: x.reshape(blocks, -1, *x.shape[1:]), (plan.params, episodes))
    keys = jax.random.split(key, blocks)
    if workflow.same_episodes:  # which another block than the first may play too
        shared = plan.group[-1] < slots
        keys = keys[jnp.where(shared, 0, jnp.arange(blocks))]
        plan = replace(plan, group=plan.group[:slots])
    behaviour = drawing(workflow, state)

    def observing(statistics: Any, transitions: Transition, mask: Array) -> Any:
        """The statistics with a chunk's observations that are finite, where they are kept."""
        if workflow.normalization == "none":
            return statistics
        obs = tree.merge_axes(transitions.obs)
        return statistics.update(obs, mask.reshape(-1) & tree.finite_rows(obs))

    def play_block(statistics: Any, block: tuple[Key, tuple[Params, Array]]) -> tuple[Any, Played]:
        key, (params, episodes) = block
        todo, store = replace(plan, params=params, episodes=episodes), Store(workflow.chunk, statistics, observing)
        played = workflow.vector_env.play(behaviour, state.env_params, todo, None, key, store)
        return played.stored, replace(played, plan=(), slots=(), stored=())

    statistics, played = jax.lax.scan(play_block, state.statistics, (keys, apart))
    stats, described = tree.merge_axes(played.stats), tree.mean(played.described)
    return Played(plan, (), stats, statistics, described)


def drawing(workflow: Any, state: Any) -> Behaviour:
    """How members act, which are drawn as they play where the evolver has seeds of them."""
    behaviour, evolver, hyperparams = workflow.behaviour(state), workflow.evolver, workflow.now(state).evolver
    if not isinstance(evolver, DrawsMembers):
        return behaviour
    draw = lambda genomes: evolver.drawn(state.evolver, genomes, hyperparams)  # noqa: E731
    express = lambda held: evolver.to_params(state.evolver, held, hyperparams)  # noqa: E731
    return replace(behaviour, draw=draw, express=express)
