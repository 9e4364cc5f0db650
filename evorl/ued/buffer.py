"""The levels that a curriculum keeps: drawn by score and age, and replaced by better ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt32

from evorl import tree
from evorl.errors import require_int
from evorl.types import Key, Level
from evorl.ued.score_table import Curation, ScoreTable

Equal: TypeAlias = Callable[[Level, Level], Array]  # whether two levels are the same, bool []
Fingerprint: TypeAlias = Callable[[Level], Array]  # uint32 [2], the same of levels that are the same


@struct.dataclass
class LevelBuffer:
    """`capacity` places for levels of any pytree, no two of which are the same.

    All happens one level after another (Jiang et al. 2021, arXiv:2110.02439). A score that is not finite
    is none: such a level changes nothing.
    """

    levels: Level  # leaves [capacity, ...]
    score_table: ScoreTable

    @classmethod
    def empty(cls, capacity: int, level: Level, prioritization: str = "rank") -> "LevelBuffer":
        """For levels like `level`, a pytree of arrays or of their shapes; prioritization is "rank" or "proportional".

        Raises OptionError where it is neither, or capacity is below 1.
        """
        require_int("capacity", capacity)
        levels = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), level)
        return cls(levels, ScoreTable.empty(capacity, prioritization))

    @property
    def capacity(self) -> int:
        """For how many levels there is room."""
        return self.score_table.capacity

    @property
    def size(self) -> Any:
        """How many levels it holds, int32 []."""
        return self.score_table.size

    def get_levels(self, places: Int[Array, "..."]) -> Level:
        """The levels at places, leaves [*shape of places, ...]."""
        return tree.index(self.levels, places)

    def get_best_returns(
        self, levels: Level, equal: Equal, fingerprint: Fingerprint = tree.hash_tree
    ) -> Float[Array, " n"]:
        """The highest return over the life of levels, leaves [n, ...]; -inf of those that it does not hold."""
        places = self._find_levels(levels, jax.vmap(fingerprint)(levels), equal)
        return self.score_table.best.at[places].get(mode="fill", fill_value=-jnp.inf)

    def replay_probabilities(self, curation: Curation) -> Float[Array, " capacity"]:
        """The probability of each place in the next draw; 0 of a free one."""
        return self.score_table.replay_probabilities(curation)

    @jax.named_scope("levels")
    def sample_indices(
        self, key: Key, n: int, curation: Curation, active: bool | Bool[Array, ""] = True
    ) -> tuple[Int[Array, " n"], "LevelBuffer"]:
        """n places to replay, one after another, and the buffer with the ages after them; it must hold some.

        Each draw is by the chances that the one before it left, so that a place may come twice.
        Where not active no age changes.
        """
        places, ledger = self.score_table.sample_indices(key, n, curation)
        age = jnp.where(active, ledger.age, self.score_table.age)
        return places, replace(self, score_table=replace(ledger, age=age))

    @jax.named_scope("levels")
    def update_scores(
        self, places: Int[Array, " n"], score: Float[Array, " n"], best: Float[Array, " n"]
    ) -> "LevelBuffer":
        """After levels at places were replayed: their scores, and the highest returns of these replays.

        One after another: of a place that comes twice the last score stays, and the highest return of all. To be told
        before new levels enter, which may take these places.
        """
        return replace(self, score_table=self.score_table.update_scores(places, score, best))

    @jax.named_scope("levels")
    def insert_levels(
        self,
        levels: Level,
        score: Float[Array, " n"],
        best: Float[Array, " n"],
        equal: Equal,
        curation: Curation,
        fingerprint: Fingerprint = tree.hash_tree,
    ) -> "LevelBuffer":
        """After n new levels, leaves [n, ...], with their scores and the highest returns, one after another.

        All ages grow by the number of those with a score. One equal to one before it in the batch is dropped, one equal
        to one here updates that place, whose age stays; else it takes a free place, or that of least P (of several: of
        the last rank) if its score is at least that one's, with age 0. Where `equal` takes levels for the same whose
        bits are not, fingerprint must be the same of them, and the same function at every insertion.
        """
        scored = jnp.isfinite(score)
        mark = jax.vmap(fingerprint)(levels)
        again = self._is_duplicate(levels, mark, scored, equal)
        known = self._find_levels(levels, mark, equal)
        ledger = self.score_table.increment_ages(scored.sum())
        ledger, to = ledger.insert_scores(mark, known, jnp.where(again, jnp.nan, score), best, curation)
        number = jnp.arange(len(score))
        lost = ((to[:, None] == to) & (number[:, None] < number)).any(1)  # to a later one of this batch
        to = jnp.where(lost | (to == self.capacity), self.capacity + number, to)  # distinct, so that indices are unique
        put = lambda old, new: old.at[to].set(new, mode="drop", unique_indices=True)  # noqa: E731
        return LevelBuffer(jax.tree.map(put, self.levels, levels), ledger)

    def _find_levels(self, levels: Level, mark: UInt32[Array, "n 2"], equal: Equal) -> Int[Array, " n"]:
        """The place of the same level, `capacity` where there is none."""
        place = _find_first(_fingerprints_match(mark, self.score_table.fingerprint) & self.score_table.valid_mask)
        found = jax.vmap(equal)(levels, self.get_levels(jnp.minimum(place, self.capacity - 1)))
        return jnp.where(found, place, self.capacity)

    def _is_duplicate(
        self, levels: Level, mark: UInt32[Array, "n 2"], scored: Bool[Array, " n"], equal: Equal
    ) -> Bool[Array, " n"]:
        """Whether one before it, that has a score, is the same."""
        n = len(scored)
        number = jnp.arange(n)
        first = _find_first(_fingerprints_match(mark, mark) & scored & (number < number[:, None]))
        return (first < n) & jax.vmap(equal)(levels, tree.index(levels, jnp.minimum(first, n - 1)))


def _fingerprints_match(a: UInt32[Array, "n 2"], b: UInt32[Array, "m 2"]) -> Bool[Array, "n m"]:
    """Of which pairs the fingerprints are the same."""
    return (a[:, None, 0] == b[:, 0]) & (a[:, None, 1] == b[:, 1])


def _find_first(mask: Bool[Array, "n m"]) -> Int[Array, " n"]:
    """The first of each row, m where there is none."""
    m = mask.shape[1]
    return jnp.where(mask, jnp.arange(m, dtype=jnp.int32), m).min(1)
