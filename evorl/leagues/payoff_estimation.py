"""Estimation of the payoffs of profiles from episodes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from evorl import tree, vector_env
from evorl.leagues.oracles import zero_counts
from evorl.leagues.payoffs import Payoffs
from evorl.leagues.policy_grouping import act_from_pool
from evorl.leagues.policy_sets import PolicySet
from evorl.leagues.roles import Roles
from evorl.types import Key, Metrics
from evorl.vector_env import EnvBatch, ResetStarts

CHECK_INTERVAL = 8  # steps between two tests whether all episodes have ended
CPU_BLOCK, BLOCK = 8, 64  # profiles that are played in parallel on a CPU and on an accelerator


def mask_newest_profiles(newest: Int[Array, ""], players: int, capacity: int) -> Bool[Array, "..."]:
    """Return a mask of the profiles with the newest policy for some player and no later one.

    It has the shape [capacity, ..., capacity].
    """
    grid = jnp.stack(jnp.meshgrid(*[jnp.arange(capacity)] * players, indexing="ij"))
    return (grid == newest).any(0) & (grid <= newest).all(0)


def list_newest_profiles(
    newest: Int[Array, ""], players: int, capacity: int
) -> tuple[Int[Array, "cells players"], Array]:
    """Return the profiles in which some player has the newest policy, and their number.

    The remaining rows have the newest policy for all players.
    """
    cells = []
    for player in range(players):
        others = np.indices((capacity,) * (players - 1)).reshape(players - 1, -1).T
        cells.append(jnp.insert(jnp.asarray(others, jnp.int32), player, newest, axis=1))
    found = jnp.concatenate(cells)
    first = jnp.repeat(jnp.arange(players), len(cells[0]))[:, None] > jnp.arange(players)
    none = ((found == newest) & first).any(1) | (found > newest).any(1)  # not in the pool yet, or listed before
    return jnp.where(none[:, None], newest, found)[jnp.argsort(none)], (~none).sum()


def act_jointly(
    roles: Roles,
    policy_sets: Mapping[str, PolicySet],
    pool: Any,
    profile: Int[Array, " players"],
    obs: Any,
    memory: dict[str, Any],
    key: Key,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the actions of all players by the policies of a profile, by group, and the new memory of each role."""
    actions, after = {}, {}
    for i, role in enumerate(roles.roles):
        policies, all_of_it = profile[jnp.asarray(roles.get_player_indices(role))], jnp.arange(len(role.players))
        having = roles.stack_players(role, obs), memory[role.name], jax.random.fold_in(key, i)
        done, after[role.name] = act_from_pool(policy_sets[role.name], pool[role.name], policies, all_of_it, *having)
        actions |= roles.unstack_players(role, done)
    return actions, after


def init_memories(roles: Roles, policy_sets: Mapping[str, PolicySet]) -> dict[str, Any]:
    """Return the recurrent states of each role's players at the start of an episode, leaves [players, ...]."""
    return {role.name: tree.broadcast(policy_sets[role.name].initial_memory, len(role.players)) for role in roles.roles}


def evaluate_profiles(
    roles: Roles,
    policy_sets: Mapping[str, PolicySet],
    pool: Any,
    env_params: Any,
    profiles: Int[Array, "cells players"],
    episodes: int,
    key: Key,
) -> tuple[Float[Array, "episodes cells players"], Int[Array, ""]]:
    """Play episodes of all profiles in parallel; return each player's returns and the number of steps.

    The returns have the shape [episodes, cells, players]. The return of a group is the mean over its members.
    """
    cells = len(profiles)

    def act(obs: Any, memory: Any, keys: Key) -> tuple[Any, Any, dict[str, Any]]:
        rows = jax.tree.map(lambda x: x.reshape(cells, episodes, *x.shape[1:]), (obs, memory, keys))
        of_cell = jax.vmap(partial(act_jointly, roles, policy_sets, pool), (None, 0, 0, 0))
        return *tree.merge_axes(jax.vmap(of_cell)(profiles, *rows)), {}

    world = EnvBatch(roles.game, env_params, init_memories(roles, policy_sets), cells * episodes)
    stats = vector_env.run_episodes(world, act, ResetStarts(), key, CHECK_INTERVAL)
    returns = jnp.stack([stats.returns[name].mean(-1) for name in roles.players], -1)
    return jnp.moveaxis(returns.reshape(cells, episodes, -1), 0, 1), stats.steps.sum()


def count_steps_and_episodes(steps: Int[Array, ""], episodes: int | Array) -> Metrics:
    """Return the given env steps and episodes as counts, without gradient steps."""
    return zero_counts() | {"env_steps": steps, "episodes": jnp.asarray(episodes, jnp.int32)}


def evaluate_newest_profiles(
    roles: Roles,
    policy_sets: Mapping[str, PolicySet],
    pool: Any,
    env_params: Any,
    newest: Int[Array, ""],
    episodes: int,
    key: Key,
) -> tuple[Payoffs, Metrics]:
    """Play episodes of each profile with the newest policies; return their payoffs in a table, and the counts."""
    players = roles.num_players
    capacity = jax.tree.leaves(pool)[0].shape[0]
    profiles, count = list_newest_profiles(newest, players, capacity)
    size = CPU_BLOCK if jax.default_backend() == "cpu" else BLOCK
    blocks = -(-len(profiles) // size)
    spare = jnp.full((blocks * size - len(profiles), players), newest)
    profiles = jnp.concatenate([profiles, spare]).reshape(blocks, size, players)

    def evaluate_block(i: Int[Array, ""], carry: tuple[Payoffs, Array]) -> tuple[Payoffs, Array]:
        done, steps = carry
        returns, more = evaluate_profiles(
            roles, policy_sets, pool, env_params, profiles[i], episodes, jax.random.fold_in(key, i)
        )
        cells, places = Payoffs.from_returns(returns, axis=-1), (slice(None), *profiles[i].T)
        return jax.tree.map(lambda old, new: old.at[places].set(new.T), done, cells), steps + more

    played_blocks = -(-count // size)
    begun = Payoffs.empty(players, capacity), jnp.int32(0)
    done, steps = jax.lax.fori_loop(0, played_blocks, evaluate_block, begun)
    return done, count_steps_and_episodes(steps, played_blocks.astype(jnp.int32) * size * episodes)
