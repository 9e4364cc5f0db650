"""What policies of a pool pay each other, found by playing."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from evorl import tree, vector_env
from evorl.leagues.acting import Cast
from evorl.leagues.payoffs import Payoffs
from evorl.leagues.roles import Roles
from evorl.types import Key
from evorl.vector_env import FromParams, Plan, Store, World

CHUNK = 8  # steps between two looks at whether all have ended


def of_newest(newest: Int[Array, ""], players: int, capacity: int) -> Bool[Array, "..."]:
    """Which profiles, [capacity, ..., capacity], have the newest policy for some player, and none beyond it."""
    grid = jnp.stack(jnp.meshgrid(*[jnp.arange(capacity)] * players, indexing="ij"))
    return (grid == newest).any(0) & (grid <= newest).all(0)


def with_newest(newest: Int[Array, ""], players: int, capacity: int) -> Int[Array, "cells players"]:
    """Profiles in which some player has the newest policy, each once; those that there are not have all the newest."""
    cells = []
    for player in range(players):
        others = np.indices((capacity,) * (players - 1)).reshape(players - 1, -1).T
        cell = jnp.insert(jnp.asarray(others, jnp.int32), player, newest, axis=1)
        again = (cell[:, :player] == newest).any(1) | (cell > newest).any(1)
        cells.append(jnp.where(again[:, None], newest, cell))
    return jnp.concatenate(cells)


def acts_together(
    roles: Roles, casts: Mapping[str, Cast], kept: Any, obs: Any, memory: Any, key: Key
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What all players do, by group, and the memory of each role after it; kept and memory lead with its players."""
    actions, after = {}, {}
    for i, role in enumerate(roles.roles):
        keys = jax.random.split(jax.random.fold_in(key, i), len(role.players))
        seen = roles.stacked(role, obs)
        done, after[role.name] = jax.vmap(casts[role.name].act)(kept[role.name], seen, memory[role.name], keys)
        actions |= roles.spread(role, done)
    return actions, after


def taken(roles: Roles, pool: Any, profile: Int[Array, " players"]) -> dict[str, Any]:
    """What is kept of the policies of a profile, by role, leaves [players, ...]."""
    found = {}
    for role in roles.roles:
        chosen = profile[jnp.asarray(roles.numbers(role))], jnp.arange(len(role.players))
        found[role.name] = tree.index(pool[role.name], chosen)
    return found


def memories(roles: Roles, casts: Mapping[str, Cast]) -> dict[str, Any]:
    """The memory of each role's players at the start of an episode, leaves [players, ...]."""
    return {role.name: tree.broadcast(casts[role.name].memory, len(role.players)) for role in roles.roles}


def played(
    roles: Roles,
    casts: Mapping[str, Cast],
    pool: Any,
    env_params: Any,
    profiles: Int[Array, "cells players"],
    episodes: int,
    key: Key,
) -> Float[Array, "episodes cells players"]:
    """What each player of each profile gets in so many episodes, all side by side; of a group its members' mean."""
    cells = len(profiles)
    kept = jax.vmap(lambda profile: taken(roles, pool, profile))(profiles)

    def act(obs: Any, memory: Any, keys: Key) -> tuple[Any, Any, dict[str, Any]]:
        rows = jax.tree.map(lambda x: x.reshape(cells, episodes, *x.shape[1:]), (obs, memory, keys))
        one = lambda kept, *slot: acts_together(roles, casts, kept, *slot)  # noqa: E731
        found = jax.vmap(jax.vmap(one, (None, 0, 0, 0)))(kept, *rows)
        return *tree.merge_axes(found), {}

    world = World(roles.game, env_params, memories(roles, casts), cells * episodes)
    nothing: Store[tuple[()]] = Store(CHUNK, (), lambda *_: ())
    stats = vector_env.play(world, act, Plan(FromParams(), episodes=1), None, key, nothing)[1]
    returns = jnp.stack([stats.returns[name].mean(-1) for name in roles.players], -1)
    return jnp.moveaxis(returns.reshape(cells, episodes, -1), 0, 1)


def table(cells: Payoffs, profiles: Int[Array, "cells players"], capacity: int) -> Payoffs:
    """Payoffs of profiles, leaves [cells, players], in their places; one that comes several times has the last's."""
    players, places = profiles.shape[1], tuple(profiles.T)

    def put(values: Float[Array, "cells players"]) -> Float[Array, "players ..."]:
        return jnp.zeros((players,) + (capacity,) * players).at[(slice(None), *places)].set(values.T)

    return Payoffs(put(cells.mean), put(cells.variance), put(cells.episodes))
