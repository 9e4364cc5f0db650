"""Rollouts of a population, in blocks that fit in memory and caches, and with individuals generated from seeds."""

from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr
from jaxtyping import Array

from evorl import mesh, tree
from evorl.normalize import RunningStatistics, update_obs_statistics
from evorl.spaces import to_shape_structs
from evorl.types import Key, Metrics, Params, SeedEvolver
from evorl.vector_env import Behaviour, EpisodeStats, Rollout, RolloutPlan, TransitionStore, hosts

Block: TypeAlias = tuple[Params, Array, Array]  # individuals; episodes and seed group of each environment
CACHE_BYTES = 8 * 2**20  # of weights that one device, a part of a CPU, uses again and again without loss
LEAST_MEMBERS = 8  # of a block, on each device
MOST_OPERATIONS = 10_000  # of a step of an environment; physics has more, and takes longer than reading the weights


def rollout_blocks(workflow: Any, state: Any, plan: RolloutPlan, key: Key) -> Rollout:
    """Run the rollout of a population block by block; it stores the observation statistics after the rollout."""
    blocks = split_plan(workflow, plan, choose_num_blocks(workflow, state, plan))
    run = lambda statistics, block: rollout_block(workflow, state, plan, block, statistics, key)  # noqa: E731
    statistics, (stats, described) = jax.lax.scan(run, state.obs_statistics, blocks)
    return Rollout(plan, None, jax.tree.map(_join_blocks, stats), statistics, tree.mean(described))


def choose_num_blocks(workflow: Any, state: Any, plan: RolloutPlan) -> int:
    """Return the number of blocks of a population: as `members_at_once` says, or on a CPU by the size of the weights.

    A step reads the weights of all individuals of a block. If they fit in the caches, the next step finds them there.
    Environments with many operations are faster all at once.
    """
    size, shards = workflow.evolver.population_size, mesh.count_shards(mesh.ENVS)
    if workflow.members_at_once:
        return size // workflow.members_at_once
    if jax.default_backend() != "cpu" or hosts.find_host_params(state.env_params) is not None:
        return 1
    held = jax.eval_shape(make_member_behaviour(workflow, state).materialize, plan.params)
    share = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(held)) / shards
    if share <= CACHE_BYTES or count_operations(workflow.env) > MOST_OPERATIONS:
        return 1
    counts = [i for i in range(1, size // (shards * LEAST_MEMBERS) + 1) if size % (i * shards) == 0] or [1]
    return next((count for count in counts if share / count <= CACHE_BYTES), counts[-1])


def count_operations(env: Any) -> int:
    """Return the number of operations of a step of an environment, all iterations of its scans included."""

    def count(jaxpr: Any) -> int:
        total = 0
        for equation in jaxpr.eqns:
            inner = [x for x in jax.tree.leaves(equation.params) if isinstance(x, Jaxpr | ClosedJaxpr)]
            repeats = equation.params["length"] if equation.primitive.name == "scan" else 1
            total += repeats * sum(count(getattr(x, "jaxpr", x)) for x in inner) if inner else 1
        return total

    key, params = jax.random.key(0), env.default_params
    state, _ = jax.eval_shape(env.reset, key, params)
    return count(jax.make_jaxpr(env.step)(key, state, to_shape_structs(env.action_space), params).jaxpr)


def split_plan(workflow: Any, plan: RolloutPlan, num_blocks: int) -> Block:
    """Return what each block has of its own in a plan, leaves [blocks, ...]."""
    assert plan.episodes is not None
    episodes = jnp.broadcast_to(plan.episodes, workflow.num_envs)
    group = jnp.arange(workflow.num_envs) if plan.seed_group is None else plan.seed_group
    return jax.tree.map(partial(_divide_rows, num_blocks=num_blocks), (plan.params, episodes, group))


def _divide_rows(x: Array, num_blocks: int) -> Array:
    """Divide the rows of an array into blocks; each has rows of all devices, and no row moves to another device."""
    shards = mesh.count_shards(mesh.ENVS)
    parts = x.reshape(shards, num_blocks, len(x) // (shards * num_blocks), *x.shape[1:])
    return parts.swapaxes(0, 1).reshape(num_blocks, len(x) // num_blocks, *x.shape[1:])


def _join_blocks(x: Array) -> Array:
    """Return the rows in the order that they had before `_divide_rows`."""
    (num_blocks, size), shards = x.shape[:2], mesh.count_shards(mesh.ENVS)
    parts = x.reshape(num_blocks, shards, size // shards, *x.shape[2:])
    return parts.swapaxes(0, 1).reshape(num_blocks * size, *x.shape[2:])


def rollout_block(
    workflow: Any, state: Any, plan: RolloutPlan, block: Block, statistics: RunningStatistics | None, key: Key
) -> tuple[RunningStatistics | None, tuple[EpisodeStats, Metrics]]:
    """Run the rollout of one block.

    Args:
        workflow: Workflow with a population.
        state: State of the workflow.
        plan: Plan of the whole population.
        block: Individuals, episodes and seed group of this block.
        statistics: Observation statistics to which the observations are added; None without.
        key: Key of the whole rollout; an environment has the same random numbers in any block.

    Returns:
        The statistics, and the episode statistics and the state metrics of the block.
    """
    params, episodes, group = block
    key = jax.random.split(key, 1)[0]  # seeds keep the results that they had when each block had a key of its own
    plan = replace(plan, params=params, episodes=episodes, seed_group=group)
    store = TransitionStore(workflow.scan_length, statistics, update_obs_statistics)
    behaviour = make_member_behaviour(workflow, state)
    world = workflow.vector_env.divide(workflow.num_envs // len(episodes))
    played = world.rollout(behaviour, state.env_params, plan, None, key, store)
    return played.stored, (played.stats, played.state_metrics)


def make_member_behaviour(workflow: Any, state: Any) -> Behaviour:
    """Return the behavior of individuals, which a SeedEvolver generates from seeds during the rollout."""
    behaviour, evolver = workflow.behaviour(state), workflow.evolver
    if not isinstance(evolver, SeedEvolver):
        return behaviour
    draw = lambda genomes: evolver.materialize(state.evolver, genomes)  # noqa: E731
    express = lambda held: evolver.to_params(state.evolver, held)  # noqa: E731
    return replace(behaviour, materialize=draw, decode_params=express)
