"""Buffer of the levels of a curriculum, sampled by score and age, and replaced by levels with higher scores."""

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
Fingerprint: TypeAlias = Callable[[Level], Array]  # hash of a level, uint32 [2]; the same for levels that are the same


@struct.dataclass
class LevelBuffer:
    """Buffer of at most `capacity` different levels, which are pytrees of arrays, with their scores and ages.

    All operations treat levels sequentially (Jiang et al. 2021, arXiv:2110.02439). A level whose score is not
    finite has no score; it changes nothing.

    Args:
        levels: Levels, leaves [capacity, ...].
        score_table: Scores, ages and ranks of the levels.
    """

    levels: Level
    score_table: ScoreTable

    @classmethod
    def empty(cls, capacity: int, level: Level, prioritization: str = "rank") -> "LevelBuffer":
        """Create an empty buffer.

        Args:
            capacity: Maximum number of levels.
            level: Example of a level, a pytree of arrays or of their shapes.
            prioritization: Whether levels are replayed by the "rank" of their scores or "proportional" to
                them.

        Raises:
            OptionError: If prioritization is neither, or capacity is below 1.
        """
        require_int("capacity", capacity)
        levels = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), level)
        return cls(levels, ScoreTable.empty(capacity, prioritization))

    @property
    def capacity(self) -> int:
        """Return the maximum number of levels."""
        return self.score_table.capacity

    @property
    def size(self) -> Any:
        """Return the number of levels in the buffer, int32 []."""
        return self.score_table.size

    def get_levels(self, places: Int[Array, "..."]) -> Level:
        """Return the levels at indices of the buffer.

        Args:
            places: Indices, of any shape.

        Returns:
            Levels, leaves [*shape of places, ...].
        """
        return tree.index(self.levels, places)

    def get_best_returns(
        self, levels: Level, equal: Equal, fingerprint: Fingerprint = tree.hash_tree
    ) -> Float[Array, " n"]:
        """Return the highest return so far on each of the given levels, shape [n].

        Args:
            levels: Levels, leaves [n, ...].
            equal: Function that returns whether two levels are the same.
            fingerprint: Hash function of a level, as in `insert_levels`.

        Returns:
            Highest returns; -inf for a level that is not in the buffer.
        """
        places = self._find_levels(levels, jax.vmap(fingerprint)(levels), equal)
        return self.score_table.best.at[places].get(mode="fill", fill_value=-jnp.inf)

    def replay_probabilities(self, curation: Curation) -> Float[Array, " capacity"]:
        """Return the probability of each index in the next draw, shape [capacity]; 0 without a level.

        Args:
            curation: Temperature and staleness of the replay.
        """
        return self.score_table.replay_probabilities(curation)

    @jax.named_scope("levels")
    def sample_indices(
        self, key: Key, n: int, curation: Curation, active: bool | Bool[Array, ""] = True
    ) -> tuple[Int[Array, " n"], "LevelBuffer"]:
        """Draw n levels to replay sequentially, and update the ages. The buffer must not be empty.

        Each draw uses the probabilities that the draw before it has left. An index can be drawn several
        times.

        Args:
            key: Random key.
            n: Number of levels.
            curation: Temperature and staleness of the replay.
            active: Whether the levels are replayed; if False, the ages stay unchanged.

        Returns:
            Indices of the levels, shape [n], and the new buffer.
        """
        places, table = self.score_table.sample_indices(key, n, curation)
        age = jnp.where(active, table.age, self.score_table.age)
        return places, replace(self, score_table=replace(table, age=age))

    @jax.named_scope("levels")
    def update_scores(
        self, places: Int[Array, " n"], score: Float[Array, " n"], best: Float[Array, " n"]
    ) -> "LevelBuffer":
        """Update the scores of levels that were replayed.

        If an index occurs several times, its last score and its highest return count. Call this before
        `insert_levels`, which may replace these levels.

        Args:
            places: Indices of the levels, shape [n].
            score: New scores, shape [n]; a score that is not finite changes nothing.
            best: Highest return of each replay, shape [n].

        Returns:
            The new buffer.
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
        """Insert new levels sequentially.

        All ages grow by the number of new levels with a score. A level that equals an earlier one of the
        batch with a score is dropped. A level that equals one in the buffer updates that one, whose age
        stays. Any other level takes a free index. If there is none, it replaces the level with the lowest
        replay probability (of several, the one with the last rank), but only if its own score is at least as
        high. Its age is then 0.

        Args:
            levels: New levels, leaves [n, ...].
            score: Their scores, shape [n]; a level whose score is not finite is not inserted.
            best: Highest return on each level, shape [n].
            equal: Function that returns whether two levels are the same.
            curation: Temperature and staleness of the replay.
            fingerprint: Hash function of a level, uint32 [2], which must be the same in every call. If
                `equal` treats levels with different bits as the same, it must return the same hash for them.

        Returns:
            The new buffer.
        """
        scored = jnp.isfinite(score)
        hashes = jax.vmap(fingerprint)(levels)
        again = self._is_duplicate(levels, hashes, scored, equal)
        known = self._find_levels(levels, hashes, equal)
        table = self.score_table.increment_ages(scored.sum())
        table, to = table.insert_scores(hashes, known, jnp.where(again, jnp.nan, score), best, curation)
        number = jnp.arange(len(score))
        lost = ((to[:, None] == to) & (number[:, None] < number)).any(1)  # overwritten by a later level of the batch
        to = jnp.where(lost | (to == self.capacity), self.capacity + number, to)  # distinct, so that indices are unique
        put = lambda old, new: old.at[to].set(new, mode="drop", unique_indices=True)  # noqa: E731
        return LevelBuffer(jax.tree.map(put, self.levels, levels), table)

    def _find_levels(self, levels: Level, hashes: UInt32[Array, "n 2"], equal: Equal) -> Int[Array, " n"]:
        """Return the index of the same level in the buffer, or `capacity` if there is none."""
        place = _find_first(_fingerprints_match(hashes, self.score_table.fingerprint) & self.score_table.valid_mask)
        found = jax.vmap(equal)(levels, self.get_levels(jnp.minimum(place, self.capacity - 1)))
        return jnp.where(found, place, self.capacity)

    def _is_duplicate(
        self, levels: Level, hashes: UInt32[Array, "n 2"], scored: Bool[Array, " n"], equal: Equal
    ) -> Bool[Array, " n"]:
        """Return which levels are the same as an earlier level of the batch that has a score."""
        n = len(scored)
        number = jnp.arange(n)
        first = _find_first(_fingerprints_match(hashes, hashes) & scored & (number < number[:, None]))
        return (first < n) & jax.vmap(equal)(levels, tree.index(levels, jnp.minimum(first, n - 1)))


def _fingerprints_match(a: UInt32[Array, "n 2"], b: UInt32[Array, "m 2"]) -> Bool[Array, "n m"]:
    """Return which pairs of fingerprints are the same."""
    return (a[:, None, 0] == b[:, 0]) & (a[:, None, 1] == b[:, 1])


def _find_first(mask: Bool[Array, "n m"]) -> Int[Array, " n"]:
    """Return the index of the first true entry of each row, or m if there is none."""
    m = mask.shape[1]
    return jnp.where(mask, jnp.arange(m, dtype=jnp.int32), m).min(1)
