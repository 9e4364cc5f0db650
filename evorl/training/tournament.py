"""Everyone against everyone: policies of a game in each other's company, and what each is paid."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from evorl import vector_env
from evorl.envs.wrappers import innermost
from evorl.errors import OptionError, require
from evorl.keys import of_seed
from evorl.spaces import sizes
from evorl.training.against import Place, by_chance
from evorl.training.policy import Policy
from evorl.types import Env, Key, Memory
from evorl.vector_env import FromParams, World

SIDE_BY_SIDE = 16_384  # episodes, about


@dataclass(frozen=True)
class Table:
    """What each (row) is paid against each (column), a mean over places and episodes, NaN against itself."""

    mean: Float[np.ndarray, "n n"]
    error: Float[np.ndarray, "n n"]  # the standard error
    won: Float[np.ndarray, "n n"]  # games, of which a draw is half of one for both


def places(env: Env) -> list[Place]:
    """Those that are taken one by one: the groups of a game, or the members where it has one group."""
    teams = sizes(env.action_space)
    (group, n), *more = teams.items() if teams else [("", 1)]
    found = [Place(name) for name in teams] if more else [Place(group, i) for i in range(n)]
    require(len(found) > 1, "env", type(innermost(env)).__name__, "is no game of several, and a tournament needs one")
    return found


def profiles(entrants: int, places: int) -> Int[np.ndarray, "profiles places"]:
    """Who takes which place: one of two has one of them, and the other all else, in every way."""
    pairs = permutations(range(entrants), 2)
    rows = [[i if p == place else j for p in range(places)] for i, j in pairs for place in range(places)]
    return np.unique(np.array(rows), axis=0)


def play(entrants: Sequence[Policy | None], episodes: int, seed: int = 0, explores: bool = False) -> Table:
    """The table of so many episodes of each profile, or a few more; who is None acts by chance.

    Raises OptionError where policies play different games.
    """
    policies = [one for one in entrants if one is not None]
    first = policies[0]
    for one in policies:
        if _game(one.env) != _game(first.env):
            raise OptionError("run: plays another game than the first one; its observations or actions differ")
    where = places(first.env)
    who = profiles(len(entrants), len(where))
    at_once = max(1, min(episodes, SIDE_BY_SIDE // len(who)))
    slots = np.repeat(who, at_once, axis=0)
    act = [by_chance(first.env) if one is None else one.act(explores) for one in entrants]
    own = [np.flatnonzero((slots == i).any(1)) for i in range(len(entrants))]

    def together(obs: Any, memory: tuple[Memory, ...], keys: Key) -> tuple[Any, tuple[Memory, ...], dict[str, Any]]:
        """Each entrant acts in the episodes that it takes part in."""
        actions: Any = jax.vmap(first.env.action_space.sample)(keys)
        after = list(memory)
        for i, rows in enumerate(own):
            done, after[i], _ = jax.vmap(act[i])(*jax.tree.map(lambda x, rows=rows: x[rows], (obs, memory[i], keys)))
            after[i] = jax.tree.map(lambda old, new, rows=rows: old.at[rows].set(new), memory[i], after[i])
            for p, place in enumerate(where):
                here = np.flatnonzero(slots[rows, p] == i)
                actions = place.put(actions, done, rows[here], here)
        return actions, tuple(after), {}

    memories = tuple(() if one is None else one.memory for one in entrants)
    world = World(first.env, first.env_params, memories, len(slots))

    @jax.jit
    def run(key: Key) -> Float[jax.Array, "slots places"]:
        stats = vector_env.whole_episodes(world, together, FromParams(), key)
        return jnp.stack([place.of(stats.returns) for place in where], -1)

    keys = jax.random.split(of_seed(seed), -(-episodes // at_once))
    returns = [np.asarray(run(key)).reshape(len(who), at_once, len(where)) for key in keys]
    return table(np.concatenate(returns, 1), who, len(entrants))


def table(
    returns: Float[np.ndarray, "profiles episodes places"], who: Int[np.ndarray, "profiles places"], entrants: int
) -> Table:
    """What profiles paid, by pairs."""
    n = returns.shape[1]
    mean, variance, cells, won = (np.zeros((entrants, entrants)) for _ in range(4))
    for profile, paid in zip(who, returns, strict=True):
        alone = [p for p in range(len(profile)) if (profile == profile[p]).sum() == 1]
        for p in alone:
            i, j = profile[p], profile[p - 1]
            mean[i, j] += paid[:, p].mean()
            variance[i, j] += paid[:, p].var(ddof=1) / n if n > 1 else np.nan
            cells[i, j] += 1
        i, j = profile[alone[0]], profile[alone[0] - 1]
        gain = paid[:, alone[0]] - np.delete(paid, alone[0], 1).mean(1)
        wins = (gain > 0).sum() + (gain == 0).sum() / 2
        won[i, j] += wins
        won[j, i] += n - wins
    with np.errstate(invalid="ignore"):
        return Table(mean / cells, np.sqrt(variance) / cells, won)


def _game(env: Env) -> tuple[Any, ...]:
    return type(innermost(env)), env.observation_space, env.action_space
