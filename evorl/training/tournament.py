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


class Tournament:
    """A round-robin tournament, played in batches of episodes that are independent of each other.

    Each profile plays `episodes` episodes, rounded up to complete batches.

    Args:
        entrants: Policies of one game; one that is None plays random actions.
        episodes: Number of episodes of each profile.
        explores: True if all policies explore, as in training, instead of acting greedily.
        parts: Minimum number of batches.

    Raises:
        OptionError: The policies are for different games.
    """

    def __init__(
        self, entrants: Sequence[Policy | None], episodes: int, explores: bool = False, parts: int = 1
    ) -> None:
        policies = [one for one in entrants if one is not None]
        for one in policies:
            if _get_game_key(one.env) != _get_game_key(policies[0].env):
                raise OptionError(
                    "run: must have the environment of the first run; its observation or action space differs"
                )
        self._entrants, self._first, self._explores = entrants, policies[0], explores
        self._players = list_players(self._first.env)
        self._profiles = make_pairwise_profiles(len(entrants), len(self._players))
        self._at_once = max(1, min(-(-episodes // parts), PARALLEL_EPISODES // len(self._profiles)))
        self.num_batches = -(-episodes // self._at_once)
        self._run = jax.jit(self._run_episodes)

    def play_batch(self, seed: int, batch: int) -> Float[np.ndarray, "profiles episodes places"]:
        """Return the returns of a batch, by its number from 0 to `num_batches` - 1."""
        returns = self._run(jax.random.split(key_from_seed(seed), self.num_batches)[batch])
        return np.asarray(returns).reshape(len(self._profiles), self._at_once, len(self._players))

    def make_table(self, returns: Sequence[Float[np.ndarray, "profiles episodes places"]]) -> TournamentTable:
        """Return the payoff table from the returns of all batches."""
        return compute_tournament_table(np.concatenate(returns, 1), self._profiles, len(self._entrants))

    def _run_episodes(self, key: Key) -> Float[jax.Array, "envs places"]:
        env, players = self._first.env, self._players
        lineups = np.repeat(self._profiles, self._at_once, axis=0)
        act = [make_random_policy(env) if one is None else one.as_policy_fn(self._explores) for one in self._entrants]
        own = [np.flatnonzero((lineups == i).any(1)) for i in range(len(act))]

        def act_jointly(
            obs: Any, memory: tuple[Memory, ...], keys: Key
        ) -> tuple[Any, tuple[Memory, ...], dict[str, Any]]:
            """Let each entrant act in its own episodes."""
            actions: Any = jax.vmap(env.action_space.sample)(keys)
            after = list(memory)
            for i, rows in enumerate(own):
                given = jax.tree.map(lambda x, rows=rows: x[rows], (obs, memory[i], keys))
                done, after[i], _ = jax.vmap(act[i])(*given)
                after[i] = jax.tree.map(lambda old, new, rows=rows: old.at[rows].set(new), memory[i], after[i])
                for p, player in enumerate(players):
                    here = np.flatnonzero(lineups[rows, p] == i)
                    actions = player.set_actions(actions, done, rows[here], here)
            return actions, tuple(after), {}

        memories = tuple(None if one is None else one.memory for one in self._entrants)
        world = EnvBatch(env, self._first.env_params, memories, len(lineups))
        stats = vector_env.run_episodes(world, act_jointly, ResetStarts(), key)
        return jnp.stack([player.select_values(stats.returns) for player in players], -1)


def run_tournament(
    entrants: Sequence[Policy | None], episodes: int, seed: int = 0, explores: bool = False
) -> TournamentTable:
    """Play all batches of a `Tournament` in this process, and return the payoff table."""
    tournament = Tournament(entrants, episodes, explores)
    return tournament.make_table([tournament.play_batch(seed, i) for i in range(tournament.num_batches)])


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
