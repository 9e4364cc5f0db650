"""Round-robin tournaments: policies of a game play each other in pairs, and a table of their payoffs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from evorl import vector_env
from evorl.envs.wrappers import unwrap
from evorl.errors import OptionError, require
from evorl.keys import key_from_seed
from evorl.spaces import group_sizes
from evorl.training.cross_play import PlayerId, make_random_policy
from evorl.training.policy import Policy
from evorl.types import Env, Key, Memory
from evorl.vector_env import EnvBatch, ResetStarts

PARALLEL_EPISODES = 16_384  # approximate maximum


@dataclass(frozen=True)
class TournamentTable:
    """Payoffs of each entrant (row) against each other entrant (column), averaged over players and episodes.

    The payoff of an entrant against itself is NaN.
    """

    mean: Float[np.ndarray, "n n"]
    error: Float[np.ndarray, "n n"]  # standard error of the mean
    wins: Float[np.ndarray, "n n"]  # number of games won; a draw counts half for both


def list_players(env: Env) -> list[PlayerId]:
    """Return the players of a game: its groups, or the members of the group if there is only one."""
    teams = group_sizes(env.action_space)
    (group, n), *more = teams.items() if teams else [("", 1)]
    found = [PlayerId(name) for name in teams] if more else [PlayerId(group, i) for i in range(n)]
    require(len(found) > 1, "env", type(unwrap(env)).__name__, "must be a multi-agent environment for a tournament")
    return found


def make_pairwise_profiles(entrants: int, places: int) -> Int[np.ndarray, "profiles places"]:
    """Return the profiles of all pairs of entrants: one entrant controls one player, the other controls all others.

    Entry [i, p] is the entrant that controls player p in profile i.
    """
    pairs = permutations(range(entrants), 2)
    rows = [[i if p == place else j for p in range(places)] for i, j in pairs for place in range(places)]
    return np.unique(np.array(rows), axis=0)


def run_tournament(
    entrants: Sequence[Policy | None], episodes: int, seed: int = 0, explores: bool = False
) -> TournamentTable:
    """Return the payoff table of a tournament; an entrant that is None plays random actions.

    Each profile plays `episodes` episodes, rounded up to complete batches.

    Raises:
        OptionError: The policies are for different games.
    """
    policies = [one for one in entrants if one is not None]
    first = policies[0]
    for one in policies:
        if _get_game_key(one.env) != _get_game_key(first.env):
            raise OptionError(
                "run: must have the environment of the first run; its observation or action space differs"
            )
    where = list_players(first.env)
    who = make_pairwise_profiles(len(entrants), len(where))
    at_once = max(1, min(episodes, PARALLEL_EPISODES // len(who)))
    lineups = np.repeat(who, at_once, axis=0)
    act = [make_random_policy(first.env) if one is None else one.as_policy_fn(explores) for one in entrants]
    own = [np.flatnonzero((lineups == i).any(1)) for i in range(len(entrants))]

    def act_jointly(obs: Any, memory: tuple[Memory, ...], keys: Key) -> tuple[Any, tuple[Memory, ...], dict[str, Any]]:
        """Let each entrant act in its own episodes."""
        actions: Any = jax.vmap(first.env.action_space.sample)(keys)
        after = list(memory)
        for i, rows in enumerate(own):
            done, after[i], _ = jax.vmap(act[i])(*jax.tree.map(lambda x, rows=rows: x[rows], (obs, memory[i], keys)))
            after[i] = jax.tree.map(lambda old, new, rows=rows: old.at[rows].set(new), memory[i], after[i])
            for p, place in enumerate(where):
                here = np.flatnonzero(lineups[rows, p] == i)
                actions = place.set_actions(actions, done, rows[here], here)
        return actions, tuple(after), {}

    memories = tuple(None if one is None else one.memory for one in entrants)
    world = EnvBatch(first.env, first.env_params, memories, len(lineups))

    @jax.jit
    def run(key: Key) -> Float[jax.Array, "envs places"]:
        stats = vector_env.run_episodes(world, act_jointly, ResetStarts(), key)
        return jnp.stack([place.select_values(stats.returns) for place in where], -1)

    keys = jax.random.split(key_from_seed(seed), -(-episodes // at_once))
    returns = [np.asarray(run(key)).reshape(len(who), at_once, len(where)) for key in keys]
    return compute_tournament_table(np.concatenate(returns, 1), who, len(entrants))


def compute_tournament_table(
    returns: Float[np.ndarray, "profiles episodes places"], who: Int[np.ndarray, "profiles places"], entrants: int
) -> TournamentTable:
    """Compute the payoff table of pairs of entrants from the returns of profiles."""
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
        return TournamentTable(mean / cells, np.sqrt(variance) / cells, won)


def _get_game_key(env: Env) -> tuple[Any, ...]:
    return type(unwrap(env)), env.observation_space, env.action_space
