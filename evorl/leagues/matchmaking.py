"""Matchmaking of a league: opponents, snapshots and win rates (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z)."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float

from evorl.errors import require, require_int
from evorl.leagues.meta_games import normalize_weights
from evorl.leagues.prioritized_solvers import PRIORITIES
from evorl.parts import Number, number, part
from evorl.priors import LogUniform, Uniform

MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER = range(3)
EVEN_WIN_RATE = 0.5  # win rate without games; below it, the opponent wins more often

RETRIES = 0.1  # fraction of a main exploiter's episodes against a main agent that it rarely beats
MIN_GAMES = 10  # games of a record, after decay, from which an exploiter's win rate can lead to a snapshot


@part
class Matchmaking:
    """Probabilities of the opponents in a league, and conditions for snapshots of learners.

    A main agent spends the episodes that `self_play` and `prioritized` leave against the past main agents and
    main exploiters that win more often than they lose against it, or against current main agents if there are
    none of these.
    """

    self_play: Number = number(
        0.35, 0, 1, "fraction of a main agent's episodes against current main agents", Uniform(0.1, 0.6)
    )
    prioritized: Number = number(0.5, 0, 1, "fraction of a main agent's episodes against all past policies")
    curriculum: Number = number(
        0.2, 0, 1, "win rate of a main exploiter below which it meets past policies of a main agent", Uniform(0.05, 0.4)
    )
    snapshot_steps: Number = number(
        5e4, 1, about="env steps of a main agent between its snapshots", prior=LogUniform(1e4, 1e6)
    )
    beaten: Number = number(
        0.7, 0, 1, "win rate of an exploiter against each opponent at which its snapshot is taken", Uniform(0.55, 0.9)
    )
    timeout: Number = number(1e5, 1, about="env steps of an exploiter after which its snapshot is taken in any case")
    reset: Number = number(
        0.25, 0, 1, "probability that a league exploiter restarts after a snapshot", Uniform(0.0, 1.0)
    )
    decay: Number = number(
        0.99, 0, 1, "decay of the match record of a learner and an opponent with each episode between them"
    )


@dataclass(frozen=True)
class Roster:
    """Number of learners of each kind in a league, and size of its pool.

    Learners are sorted: main agents, main exploiters, league exploiters. Policies are sorted too: first
    `capacity` places for the past policies of each learner, then the current policies of all learners. If all
    places of a learner are filled, a new snapshot replaces the past policy that the learner beats most often,
    and among equals the next one in turn.

    Args:
        main: Number of main agents.
        main_exploiters: Number of main exploiters.
        league_exploiters: Number of league exploiters.
        capacity: Maximum number of past policies of each learner.
    """

    main: int = 1
    main_exploiters: int = 1
    league_exploiters: int = 2
    capacity: int = 16

    def __post_init__(self) -> None:
        require_int("main", self.main)
        for name in ("main_exploiters", "league_exploiters"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        require_int("capacity", self.capacity)

    @property
    def num_learners(self) -> int:
        """Return the number of learners."""
        return self.main + self.main_exploiters + self.league_exploiters

    @property
    def num_past(self) -> int:
        """Return the number of places for past policies."""
        return self.num_learners * self.capacity

    @property
    def num_policies(self) -> int:
        """Return the number of places for past policies plus the number of learners."""
        return self.num_past + self.num_learners

    @property
    def learner_kinds(self) -> np.ndarray:
        """Return the kind of each learner (MAIN, MAIN_EXPLOITER or LEAGUE_EXPLOITER), shape [learners]."""
        return np.repeat(
            [MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER], [self.main, self.main_exploiters, self.league_exploiters]
        )

    @property
    def policy_owners(self) -> np.ndarray:
        """Return the index of the learner to which each policy belongs, shape [policies]."""
        each = np.arange(self.num_learners)
        return np.append(np.repeat(each, self.capacity), each)

    @property
    def current_mask(self) -> np.ndarray:
        """Return a mask of the current policies of the learners, shape [policies]."""
        return np.arange(self.num_policies) >= self.num_past

    def compute_past_mask(self, taken: Any) -> Bool[Array, " policies"]:
        """Return a mask of the past policies that exist, shape [policies].

        Args:
            taken: Number of past policies of each learner, shape [learners].
        """
        there = jnp.arange(self.capacity) < taken[:, None]
        return jnp.append(there.reshape(-1), jnp.zeros(self.num_learners, bool))


def compute_match_weights(
    roster: Roster, past: Bool[Array, " policies"], won: Float[Array, "learners policies"], matches: Matchmaking
) -> Float[Array, "learners policies"]:
    """Return the probability with which each learner meets each policy, shape [learners, policies].

    At least one past policy of each main agent must exist.

    - Main agents: self-play against main agents, PFSP (`hard`) over all past policies, and for the rest PFSP
      (`hard`) over the past main agents and main exploiters that win more often than they lose against it. If
      there are none of these, the rest is self-play.
    - Main exploiters: a main agent or, if they win too rarely against it, PFSP (`even`) over its past
      policies in 90 % of the episodes; in the others, they may find that they now win more often.
    - League exploiters: PFSP (`hard`) over all past policies.
    """
    kinds, owners, now = roster.learner_kinds, roster.policy_owners, roster.current_mask

    def prioritize(priority: str, mask: Bool[Array, "..."]) -> Float[Array, "learners policies"]:
        return normalize_weights(PRIORITIES[priority](won), jnp.broadcast_to(mask, won.shape))

    self_play = jnp.broadcast_to((now & (kinds[owners] == MAIN)) / roster.main, won.shape)
    over_all = prioritize("hard", past)
    wins = past & (kinds[owners] != LEAGUE_EXPLOITER) & (won < EVEN_WIN_RATE)
    some = wins.any(1, keepdims=True)
    against_strong = jnp.where(some, prioritize("hard", jnp.where(some, wins, past)), self_play)
    rest = jnp.maximum(1 - matches.self_play - matches.prioritized, 0)
    of_main = matches.self_play * self_play + matches.prioritized * over_all + rest * against_strong
    of_exploiter = jnp.zeros(won.shape)
    for i in range(roster.main):
        able = won[:, roster.num_past + i, None] >= matches.curriculum
        itself = jnp.broadcast_to(np.arange(roster.num_policies) == roster.num_past + i, won.shape)
        earlier = prioritize("even", past & (owners == i))
        of_exploiter += jnp.where(able, itself, RETRIES * itself + (1 - RETRIES) * earlier) / roster.main
    kind = kinds[:, None]
    found = jnp.where(kind == MAIN, of_main, jnp.where(kind == MAIN_EXPLOITER, of_exploiter, over_all))
    return found / found.sum(1, keepdims=True)


def find_due_snapshots(
    roster: Roster,
    past: Bool[Array, " policies"],
    record: "MatchRecord",
    steps: Float[Array, " learners"],
    matches: Matchmaking,
) -> Bool[Array, " learners"]:
    """Return a mask of the learners whose snapshot is due, shape [learners].

    `steps` are the env steps since the last snapshot or restart. The snapshot of a main agent is due after
    `snapshot_steps`. That of an exploiter is due when its win rate is at least `beaten` against each of its
    opponents, in records of at least 10 games, or after `timeout` steps.
    """
    kinds, mains = roster.learner_kinds, roster.current_mask & (roster.learner_kinds[roster.policy_owners] == MAIN)
    opponents = jnp.where((kinds == MAIN_EXPLOITER)[:, None], mains, past)
    beats = (~opponents | (record.is_known(matches.decay) & (record.win_rate >= matches.beaten))).all(1)
    return jnp.where(kinds == MAIN, steps >= matches.snapshot_steps, beats | (steps >= matches.timeout))


@struct.dataclass
class MatchRecord:
    """Games and wins of learners against policies, shape [learners, policies]; later episodes have more weight."""

    games: Float[Array, "learners policies"]
    wins: Float[Array, "learners policies"]  # a draw is half a win

    @classmethod
    def empty(cls, roster: Roster) -> "MatchRecord":
        """Return a record without games."""
        none = jnp.zeros((roster.num_learners, roster.num_policies))
        return cls(none, none)

    @property
    def win_rate(self) -> Float[Array, "learners policies"]:
        """Return the fraction of games that each learner has won against each policy; 1/2 without games."""
        return jnp.where(self.games > 0, self.wins / jnp.where(self.games > 0, self.games, 1), EVEN_WIN_RATE)

    def is_known(self, decay: Any) -> Bool[Array, "learners policies"]:
        """Return where a record has MIN_GAMES, or nearly as many as one with this decay can have."""
        most = 1 / jnp.maximum(1 - jnp.asarray(decay), 1e-9)
        return self.games >= jnp.minimum(MIN_GAMES, 0.9 * most)

    def estimate(self, decay: Any) -> Float[Array, "learners policies"]:
        """Return the win rates by which opponents are chosen: 1/2 until they are known, so that they become known."""
        return jnp.where(self.is_known(decay), self.win_rate, EVEN_WIN_RATE)

    def update(
        self, games: Float[Array, "learners policies"], wins: Float[Array, "learners policies"], decay: Any
    ) -> Any:
        """Return the record with more games.

        The result is as if the games were added one by one, with a decay of the record before each, and the
        wins were spread evenly over them.
        """
        left = jnp.where(games > 0, jnp.where(decay > 0, decay, 0.0) ** games, 1.0)
        weight = jnp.where(decay < 1, (1 - left) / jnp.where(decay < 1, 1 - decay, 1), games)
        share = jnp.where(games > 0, wins / jnp.where(games > 0, games, 1), 0)
        return MatchRecord(self.games * left + weight, self.wins * left + weight * share)

    def forget(self, learners: Bool[Array, " learners"], policies: Bool[Array, " policies"]) -> "MatchRecord":
        """Return the record without the games of the given learners and without those against the given policies."""
        gone = learners[:, None] | policies
        return MatchRecord(jnp.where(gone, 0, self.games), jnp.where(gone, 0, self.wins))
