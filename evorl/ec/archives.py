"""Archives of quality-diversity: where a genome belongs by what it does, and whether it is the best there."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.errors import require, unknown_name_error
from evorl.types import Key, Params, QDEvaluation, SearchResults


@struct.dataclass
class Elites:
    """One genome in each of `cells` cells, or none."""

    genomes: Params  # leaves [cells, ...]
    fitness: Float[Array, " cells"]  # 0 where empty
    descriptor: Float[Array, "cells d"]
    filled: Bool[Array, " cells"]
    threshold: Float[Array, " cells"]  # above which fitness enters

    @property
    def cells(self) -> int:
        """How many there are."""
        return self.fitness.shape[0]

    @property
    def results(self) -> SearchResults:
        """All elites."""
        return SearchResults(self.genomes, self.fitness, self.filled, self.descriptor)

    @property
    def best(self) -> Params:
        """The genome of the highest fitness; that of the first cell where all are empty."""
        return tree.index(self.genomes, jnp.where(self.filled, self.fitness, -jnp.inf).argmax())

    def sample(self, key: Key, n: int) -> Params:
        """n elites, leaves [n, ...], drawn uniformly with replacement; the first genomes where all cells are empty."""
        rank = (jax.random.uniform(key, (n,)) * self.filled.sum()).astype(jnp.int32)
        place = jnp.searchsorted(jnp.cumsum(self.filled), rank, side="right")
        return tree.index(self.genomes, jnp.where(self.filled.any(), place, jnp.arange(n) % self.cells))


@struct.dataclass
class InsertionResult:
    """How n genomes fared, each against the archive as it was before all of them."""

    new_cell: Bool[Array, "*n"]  # whether its cell was empty
    entered: Bool[Array, "*n"]  # whether it was above the threshold
    gain: Float[Array, "*n"]  # by how much; of a new cell above the lowest threshold, or 0 where that is -inf


@runtime_checkable
class Archive(Protocol):
    """Where genomes are kept."""

    @property
    def num_descriptors(self) -> int:
        """How many numbers describe what a genome does."""
        ...

    def empty(self, genomes: Params) -> Elites:
        """Without elites; genomes, leaves [n, ...], are what is sampled until there is one."""
        ...

    def add(self, elites: Elites, genomes: Params, quality: QDEvaluation, rate: Any) -> tuple[Elites, InsertionResult]:
        """The elites after n genomes, leaves [n, ...], came; a fitness or descriptor that is not finite never enters.

        rate is how far a threshold moves to what enters, 1 for all the way.
        """
        ...


def create_elites(cells: int, genomes: Params, num_descriptors: int, lowest: float) -> Elites:
    """No elites in so many cells, over which genomes, leaves [n, ...], are dealt."""
    dealt = jnp.arange(cells) % tree.leading_size(genomes)
    none = jnp.zeros(cells)
    thresholds = jnp.full(cells, lowest, jnp.float32)
    return Elites(tree.index(genomes, dealt), none, jnp.zeros((cells, num_descriptors)), none > 0, thresholds)


def write_elites(elites: Elites, to: Int[Array, " n"], genomes: Params, quality: QDEvaluation) -> Elites:
    """The elites with genomes, leaves [n, ...], in distinct cells; those beyond the last are dropped."""

    def write_leaf(old: Array, new: Array) -> Array:
        return old.at[to].set(new.astype(old.dtype), mode="drop", unique_indices=True)

    return replace(
        elites,
        genomes=jax.tree.map(write_leaf, elites.genomes, genomes),
        fitness=write_leaf(elites.fitness, quality.fitness),
        descriptor=write_leaf(elites.descriptor, quality.descriptor),
        filled=write_leaf(elites.filled, jnp.ones(len(to), bool)),
    )


def is_finite(quality: QDEvaluation) -> Bool[Array, " n"]:
    """Which have a finite fitness and descriptor."""
    return jnp.isfinite(quality.fitness) & jnp.isfinite(quality.descriptor).all(-1)


def concatenate_descriptors(names: Sequence[str], means: dict[str, Array], count: int) -> Float[Array, "n d"]:
    """What is told of members by these names, numbers [n] or vectors [n, k], side by side.

    Raises OptionError where a name is unknown, or they are not `count` numbers.
    """
    for name in names:
        if name not in means:
            raise unknown_name_error("descriptors", name, means)
    descriptor = jnp.concatenate([means[name].reshape(len(means[name]), -1) for name in names], 1)
    found = descriptor.shape[1]
    require(found == count, "descriptors", list(names), f"are {found} numbers, where {count} are expected")
    return descriptor
