"""Scores, ages and ranks of the levels in a buffer, and their replay probabilities."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt32

from evorl.errors import unknown_name_error
from evorl.parts import Number, number, part
from evorl.priors import LogUniform, Uniform
from evorl.replay.sum_tree import SumTree
from evorl.types import Key

TINY = jnp.finfo(jnp.float32).tiny
PRIORITIZATIONS = ("rank", "proportional")


@part
class Curation:
    """Hyperparameters of the replay probabilities of levels.

    Source: Jiang et al. 2021, arXiv:2010.03934, section 3.
    """

    temperature: Number = number(
        0.3,
        1e-3,
        math.inf,
        "beta, temperature of the scores; low: only the highest scores are replayed, inf: all levels equally",
        LogUniform(0.1, 1.0),
    )
    staleness: Number = number(0.5, 0.0, 1.0, "rho, fraction of the replays that are drawn by age", Uniform(0.1, 0.9))


@struct.dataclass
class ScoreTable:
    """Table of `capacity` entries, of which the first `size` belong to levels and the others are free."""

    fingerprint: UInt32[Array, "capacity 2"]  # hash of the level
    score: Float[Array, " capacity"]  # -inf for a free entry
    best: Float[Array, " capacity"]  # highest return on the level so far; -inf for a free entry
    age: Int[Array, " capacity"]  # number of levels that were replayed or new since this one was; 0 for a free entry
    rank: Int[Array, " capacity"]  # of the score, from 1; ties: lower index first; free entries last
    size: Int[Array, ""]
    prioritization: str = struct.field(pytree_node=False)

    @classmethod
    def empty(cls, capacity: int, prioritization: str) -> "ScoreTable":
        """Return a table without levels; raise OptionError if the prioritization is unknown."""
        if prioritization not in PRIORITIZATIONS:
            raise unknown_name_error("prioritization", prioritization, PRIORITIZATIONS)
        hashes, rank = jnp.zeros((capacity, 2), jnp.uint32), jnp.arange(1, 1 + capacity, dtype=jnp.int32)
        # two arrays, as one array for both fields could not be donated
        score, best = (jnp.full(capacity, -jnp.inf, jnp.float32) for _ in range(2))
        return cls(hashes, score, best, jnp.zeros(capacity, jnp.int32), rank, jnp.int32(0), prioritization)

    @property
    def capacity(self) -> int:
        """Return the number of entries."""
        return self.score.shape[0]

    @property
    def indices(self) -> Int[Array, " capacity"]:
        """Return the indices of all entries."""
        return jnp.arange(self.capacity, dtype=jnp.int32)

    @property
    def valid_mask(self) -> Bool[Array, " capacity"]:
        """Return which entries belong to levels."""
        return self.indices < self.size

    def score_probabilities(self, curation: Curation) -> Float[Array, " capacity"]:
        """Return the replay probabilities by score, S: (1 / rank)^(1 / temperature), divided by the sum of all.

        With prioritization "proportional", max(score, 0) replaces 1 / rank; S is then uniform if no score is
        above 0.
        """
        if self.prioritization == "rank":
            each = (1.0 + jnp.arange(self.capacity)) ** (-1 / curation.temperature)
            return _normalize(jnp.where(self.valid_mask, each[self.rank - 1], 0))
        positive = jnp.maximum(self.score, 0)
        highest = positive.max()  # scores are divided by it, since powers of large numbers overflow
        relative = jnp.where(highest > 0, positive / jnp.maximum(highest, TINY), 1)
        weight = relative ** (1 / curation.temperature)
        return _normalize(jnp.where(self.valid_mask, weight, 0))

    def replay_probabilities(self, curation: Curation) -> Float[Array, " capacity"]:
        """Return the probabilities of the next draw, P = (1 - staleness) S + staleness C.

        C is the age divided by the sum of ages, or S if this sum is 0.
        """
        by_score, by_age = self.score_probabilities(curation), self.age.astype(jnp.float32)
        by_age = jnp.where(by_age.any(), _normalize(by_age), by_score)
        return (1 - curation.staleness) * by_score + curation.staleness * by_age

    def sample_indices(self, key: Key, n: int, curation: Curation) -> tuple[Int[Array, " n"], "ScoreTable"]:
        """Draw n entries sequentially; each draw adds 1 to all ages and sets its own to 0. Entries may repeat."""

        def sample_index(table: ScoreTable, uniform: Array) -> tuple[ScoreTable, Array]:
            chances = SumTree.from_numbers(table.replay_probabilities(curation))
            place = chances.find(uniform * chances.total)
            table = table.increment_ages(1)
            return replace(table, age=table.age.at[place].set(0)), place

        table, places = jax.lax.scan(sample_index, self, jax.random.uniform(key, (n,)))
        return places, table

    def increment_ages(self, n: int | Int[Array, ""]) -> "ScoreTable":
        """Add n to the ages of all levels, after n levels were replayed or new."""
        return replace(self, age=jnp.where(self.valid_mask, self.age + n, 0).astype(jnp.int32))

    def set_score(self, place: Int[Array, ""], score: Float[Array, ""]) -> "ScoreTable":
        """Set the score of one entry, and update all ranks. Nothing changes for the index `capacity`."""
        somewhere = place < self.capacity
        left = self.rank.at[place].get(mode="fill", fill_value=self.capacity)
        outranked = (self.score > score) | ((self.score == score) & (self.indices < place))
        rank = jnp.where(somewhere, 1 + (outranked & (self.indices != place)).sum(), 1 + self.capacity).astype(
            jnp.int32
        )
        closed = self.rank - (self.rank > left)
        ranks = (closed + (closed >= rank)).at[place].set(rank, mode="drop")
        return replace(self, score=self.score.at[place].set(score, mode="drop"), rank=ranks)

    def update_scores(
        self, places: Int[Array, " n"], score: Float[Array, " n"], best: Float[Array, " n"]
    ) -> "ScoreTable":
        """Update entries after their levels were replayed, sequentially; a score that is not finite changes nothing."""
        places = jnp.where(jnp.isfinite(score) & (places < self.size), places, self.capacity)
        rescore = lambda table, each: (table.set_score(*each), None)  # noqa: E731
        table = jax.lax.scan(rescore, self, (places, score))[0]
        return replace(table, best=self.best.at[places].max(best, mode="drop"))

    def find_lowest_priority(self, curation: Curation) -> Int[Array, ""]:
        """Return the entry with the lowest replay probability; of several, the one with the last rank."""
        chances = self.replay_probabilities(curation)
        last = jnp.where(chances == chances.min(), self.rank, 0).max()
        return jnp.where(self.rank == last, self.indices, 0).max()

    def insert_scores(
        self,
        hashes: UInt32[Array, "n 2"],
        known: Int[Array, " n"],
        score: Float[Array, " n"],
        best: Float[Array, " n"],
        curation: Curation,
    ) -> tuple["ScoreTable", Int[Array, " n"]]:
        """Insert new levels sequentially; return the entry that each one takes, or `capacity` if it takes none.

        `known` is the entry of the same level, or `capacity` if there is none. A level without a finite score
        changes nothing.
        """
        nowhere = self.capacity

        def enter(table: ScoreTable, level: tuple[Array, ...]) -> tuple[ScoreTable, Array]:
            level_hash, known, score, best = level
            scored, free = jnp.isfinite(score), table.size < nowhere
            # whether no earlier level of the batch has replaced the known one
            stays = (table.fingerprint.at[known].get(mode="clip") == level_hash).all() & (known < nowhere)
            place = jnp.where(free, table.size, table.find_lowest_priority(curation))
            enters = scored & ~stays & (free | (score >= table.score[place]))
            to = jnp.where(enters, place, nowhere)
            changed = jnp.where(scored & stays, known, to)
            best = jnp.where(enters, best, jnp.maximum(best, table.best.at[changed].get(mode="clip")))
            table = replace(
                table.set_score(changed, score),
                fingerprint=table.fingerprint.at[to].set(level_hash, mode="drop"),
                best=table.best.at[changed].set(best, mode="drop"),
                age=table.age.at[to].set(0, mode="drop"),
                size=table.size + (enters & free),
            )
            return table, to

        return jax.lax.scan(enter, self, (hashes, known, score, best))


def _normalize(weight: Float[Array, " n"]) -> Float[Array, " n"]:
    """Divide weights by their sum; the result is 0 if the sum is 0."""
    return weight / jnp.maximum(weight.sum(), TINY)
