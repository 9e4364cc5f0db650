"""Who meets whom in a league, and how often they win (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z)."""

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
EVEN_WIN_RATE = 0.5  # won of games of which nothing is known; below it the other wins more


@part
class Matchmaking:
    """How opponents are drawn, and when a learner's policy joins the past ones."""

    self_play: Number = number(
        0.35, 0, 1, "of a main agent's episodes, against main agents as they are", Uniform(0.1, 0.6)
    )
    prioritized: Number = number(
        0.5, 0, 1, "of them, against all past policies; the rest against those past main agents and exploiters that win"
    )
    curriculum: Number = number(
        0.2, 0, 1, "won by a main exploiter, below which it meets past policies of a main agent", Uniform(0.05, 0.4)
    )
    snapshot_steps: Number = number(
        5e4, 1, about="environment steps of a main agent between its snapshots", prior=LogUniform(1e4, 1e6)
    )
    beaten: Number = number(
        0.7, 0, 1, "won by an exploiter against each of its opponents, with which it is taken", Uniform(0.55, 0.9)
    )
    timeout: Number = number(1e5, 1, about="environment steps of an exploiter, after which it is taken anyhow")
    reset: Number = number(0.25, 0, 1, "how likely a league exploiter begins anew after a snapshot", Uniform(0.0, 1.0))
    decay: Number = number(0.99, 0, 1, "of what is known of two, with each episode between them")


@dataclass(frozen=True)
class Roster:
    """Learners, main agents first, and their opponents: room for so many past policies of each, then all as they are.

    Of a full room the past policy that its learner beats most often gives its place.
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
        """How many there are."""
        return self.main + self.main_exploiters + self.league_exploiters

    @property
    def num_past(self) -> int:
        """Room for past policies."""
        return self.num_learners * self.capacity

    @property
    def num_policies(self) -> int:
        """All opponents."""
        return self.num_past + self.num_learners

    @property
    def learner_kinds(self) -> np.ndarray:
        """[learners], what each is."""
        return np.repeat(
            [MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER], [self.main, self.main_exploiters, self.league_exploiters]
        )

    @property
    def policy_owners(self) -> np.ndarray:
        """[policies], whose each is."""
        each = np.arange(self.num_learners)
        return np.append(np.repeat(each, self.capacity), each)

    @property
    def current_mask(self) -> np.ndarray:
        """[policies], which are learners as they are."""
        return np.arange(self.num_policies) >= self.num_past

    def compute_past_mask(self, taken: Any) -> Bool[Array, " policies"]:
        """Which past policies there are, where so many were taken of each learner, [learners]."""
        there = jnp.arange(self.capacity) < taken[:, None]
        return jnp.append(there.reshape(-1), jnp.zeros(self.num_learners, bool))


def compute_match_weights(
    roster: Roster, past: Bool[Array, " policies"], won: Float[Array, "learners policies"], matches: Matchmaking
) -> Float[Array, "learners policies"]:
    """How likely each learner meets each policy; some past policy of each main agent must be there.

    Main agents: self-play, PFSP (hard) over all past policies, and the rest PFSP (hard) over the past main agents and
    main exploiters that win against it more often than not, or where there are none self-play. Main exploiters: a main
    agent or, where they win too little, PFSP (even) over its past policies. League exploiters: PFSP (hard) over all.
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
        of_exploiter += jnp.where(able, itself, prioritize("even", past & (owners == i))) / roster.main
    kind = kinds[:, None]
    found = jnp.where(kind == MAIN, of_main, jnp.where(kind == MAIN_EXPLOITER, of_exploiter, over_all))
    return found / found.sum(1, keepdims=True)


def find_due_snapshots(
    roster: Roster,
    past: Bool[Array, " policies"],
    won: Float[Array, "learners policies"],
    steps: Float[Array, " learners"],
    matches: Matchmaking,
) -> Bool[Array, " learners"]:
    """Whose policy is to be taken, by the environment steps since the last time.

    Of main agents after some steps, of exploiters when they beat all their opponents, or time is out.
    """
    kinds, mains = roster.learner_kinds, roster.current_mask & (roster.learner_kinds[roster.policy_owners] == MAIN)
    opponents = jnp.where((kinds == MAIN_EXPLOITER)[:, None], mains, past)
    beats = jnp.where(opponents, won, 1.0).min(1) >= matches.beaten
    return jnp.where(kinds == MAIN, steps >= matches.snapshot_steps, beats | (steps >= matches.timeout))


@struct.dataclass
class MatchRecord:
    """What is known of the episodes of learners with policies, [learners, policies]; later ones count for more."""

    games: Float[Array, "learners policies"]
    wins: Float[Array, "learners policies"]  # a draw is half of one

    @classmethod
    def empty(cls, roster: Roster) -> "MatchRecord":
        """Nothing yet."""
        none = jnp.zeros((roster.num_learners, roster.num_policies))
        return cls(none, none)

    @property
    def win_rate(self) -> Float[Array, "learners policies"]:
        """The part of games that a learner won, 1/2 of none."""
        return jnp.where(self.games > 0, self.wins / jnp.where(self.games > 0, self.games, 1), EVEN_WIN_RATE)

    def update(
        self, games: Float[Array, "learners policies"], wins: Float[Array, "learners policies"], decay: Any
    ) -> Any:
        """With so many more, as if each of them had decayed what was known before, and they had come well mixed."""
        left = jnp.where(games > 0, jnp.where(decay > 0, decay, 0.0) ** games, 1.0)
        weight = jnp.where(decay < 1, (1 - left) / jnp.where(decay < 1, 1 - decay, 1), games)
        share = jnp.where(games > 0, wins / jnp.where(games > 0, games, 1), 0)
        return MatchRecord(self.games * left + weight, self.wins * left + weight * share)

    def forget(self, learners: Bool[Array, " learners"], policies: Bool[Array, " policies"]) -> "MatchRecord":
        """With nothing known of some learners, and of some policies."""
        gone = learners[:, None] | policies
        return MatchRecord(jnp.where(gone, 0, self.games), jnp.where(gone, 0, self.wins))
