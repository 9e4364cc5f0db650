"""What a buffer knows of its levels, and by which of them it replays: everything but the levels themselves."""

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
    """By what levels are replayed (Jiang et al. 2021, arXiv:2010.03934, section 3)."""

    temperature: Number = number(
        0.3, 1e-3, math.inf, "beta; low: the highest scores alone, inf: all alike", LogUniform(0.1, 1.0)
    )
    staleness: Number = number(0.5, 0.0, 1.0, "rho, the share of draws by age", Uniform(0.1, 0.9))


@struct.dataclass
class ScoreTable:
    """The numbers of `capacity` places, of which the first `size` hold levels."""

    fingerprint: UInt32[Array, "capacity 2"]  # of the level
    score: Float[Array, " capacity"]  # -inf of a free place
    best: Float[Array, " capacity"]  # the highest return over the level's life; -inf of a free place
    age: Int[Array, " capacity"]  # how many levels were replayed or new since this one was; 0 of a free place
    rank: Int[Array, " capacity"]  # from 1, of the score; of equals the earlier place comes first, free places last
    size: Int[Array, ""]
    prioritization: str = struct.field(pytree_node=False)

    @classmethod
    def empty(cls, capacity: int, prioritization: str) -> "ScoreTable":
        """Of places that are all free; raises OptionError where there is no such prioritization."""
        if prioritization not in PRIORITIZATIONS:
            raise unknown_name_error("prioritization", prioritization, PRIORITIZATIONS)
        mark, rank = jnp.zeros((capacity, 2), jnp.uint32), jnp.arange(1, 1 + capacity, dtype=jnp.int32)
        score, best = (
            jnp.full(capacity, -jnp.inf, jnp.float32) for _ in range(2)
        )  # not one array, which could not be donated
        return cls(mark, score, best, jnp.zeros(capacity, jnp.int32), rank, jnp.int32(0), prioritization)

    @property
    def capacity(self) -> int:
        """How many places there are."""
        return self.score.shape[0]

    @property
    def indices(self) -> Int[Array, " capacity"]:
        """Their numbers."""
        return jnp.arange(self.capacity, dtype=jnp.int32)

    @property
    def valid_mask(self) -> Bool[Array, " capacity"]:
        """Which hold levels."""
        return self.indices < self.size

    def score_probabilities(self, curation: Curation) -> Float[Array, " capacity"]:
        """S: (1 / rank)^(1 / temperature), or max(score, 0)^(1 / temperature), over their sum.

        Where no score is above 0, proportional is uniform.
        """
        if self.prioritization == "rank":
            each = (1.0 + jnp.arange(self.capacity)) ** (-1 / curation.temperature)
            return _normalize(jnp.where(self.valid_mask, each[self.rank - 1], 0))
        positive = jnp.maximum(self.score, 0)
        highest = positive.max()  # by which they are divided, as powers of large numbers overflow
        relative = jnp.where(highest > 0, positive / jnp.maximum(highest, TINY), 1)
        weight = relative ** (1 / curation.temperature)
        return _normalize(jnp.where(self.valid_mask, weight, 0))

    def replay_probabilities(self, curation: Curation) -> Float[Array, " capacity"]:
        """P = (1 - staleness) S + staleness C, of the next draw; C is age over the sum of ages, S if that is 0."""
        by_score, by_age = self.score_probabilities(curation), self.age.astype(jnp.float32)
        by_age = jnp.where(by_age.any(), _normalize(by_age), by_score)
        return (1 - curation.staleness) * by_score + curation.staleness * by_age

    def sample_indices(self, key: Key, n: int, curation: Curation) -> tuple[Int[Array, " n"], "ScoreTable"]:
        """n places, one after another: each adds 1 to all ages, sets its own to 0 and may come again."""

        def sample_index(ledger: ScoreTable, uniform: Array) -> tuple[ScoreTable, Array]:
            chances = SumTree.from_numbers(ledger.replay_probabilities(curation))
            place = chances.find(uniform * chances.total)
            ledger = ledger.increment_ages(1)
            return replace(ledger, age=ledger.age.at[place].set(0)), place

        ledger, places = jax.lax.scan(sample_index, self, jax.random.uniform(key, (n,)))
        return places, ledger

    def increment_ages(self, n: int | Int[Array, ""]) -> "ScoreTable":
        """When n levels were replayed, or new."""
        return replace(self, age=jnp.where(self.valid_mask, self.age + n, 0).astype(jnp.int32))

    def set_score(self, place: Int[Array, ""], score: Float[Array, ""]) -> "ScoreTable":
        """With another score at a place, and all ranks as they are then; nothing changes for the place `capacity`."""
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
        """After levels at places were played again, one after another; those without a score changed nothing."""
        places = jnp.where(jnp.isfinite(score) & (places < self.size), places, self.capacity)
        rescore = lambda ledger, each: (ledger.set_score(*each), None)  # noqa: E731
        ledger = jax.lax.scan(rescore, self, (places, score))[0]
        return replace(ledger, best=self.best.at[places].max(best, mode="drop"))

    def find_lowest_priority(self, curation: Curation) -> Int[Array, ""]:
        """The place of least P; of several, that of the last rank."""
        chances = self.replay_probabilities(curation)
        last = jnp.where(chances == chances.min(), self.rank, 0).max()
        return jnp.where(self.rank == last, self.indices, 0).max()

    def insert_scores(
        self,
        mark: UInt32[Array, "n 2"],
        known: Int[Array, " n"],
        score: Float[Array, " n"],
        best: Float[Array, " n"],
        curation: Curation,
    ) -> tuple["ScoreTable", Int[Array, " n"]]:
        """After new levels, one after another, and the place that each of them took, `capacity` where none.

        known is where the same level lies, `capacity` where nowhere. Those without a score change nothing.
        """
        nowhere = self.capacity

        def enter(ledger: ScoreTable, level: tuple[Array, ...]) -> tuple[ScoreTable, Array]:
            mark, known, score, best = level
            scored, free = jnp.isfinite(score), ledger.size < nowhere
            stays = (ledger.fingerprint.at[known].get(mode="clip") == mark).all() & (
                known < nowhere
            )  # none took its place
            place = jnp.where(free, ledger.size, ledger.find_lowest_priority(curation))
            enters = scored & ~stays & (free | (score >= ledger.score[place]))
            to = jnp.where(enters, place, nowhere)
            changed = jnp.where(scored & stays, known, to)
            best = jnp.where(enters, best, jnp.maximum(best, ledger.best.at[changed].get(mode="clip")))
            ledger = replace(
                ledger.set_score(changed, score),
                fingerprint=ledger.fingerprint.at[to].set(mark, mode="drop"),
                best=ledger.best.at[changed].set(best, mode="drop"),
                age=ledger.age.at[to].set(0, mode="drop"),
                size=ledger.size + (enters & free),
            )
            return ledger, to

        return jax.lax.scan(enter, self, (mark, known, score, best))


def _normalize(weight: Float[Array, " n"]) -> Float[Array, " n"]:
    """Weights over their sum, 0 where that is 0."""
    return weight / jnp.maximum(weight.sum(), TINY)
