"""Archives of quality-diversity algorithms: elites in cells of the descriptor space."""

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
    """Content of an archive: each of its cells is empty or holds one genome."""

    genomes: Params  # leaves [cells, ...]
    fitness: Float[Array, " cells"]  # 0 if empty
    descriptor: Float[Array, "cells d"]
    filled: Bool[Array, " cells"]
    threshold: Float[Array, " cells"]  # fitness must exceed it to enter

    @property
    def cells(self) -> int:
        """Return the number of cells."""
        return self.fitness.shape[0]

    @property
    def results(self) -> SearchResults:
        """Return all cells as search results; the valid mask marks the filled ones."""
        return SearchResults(self.genomes, self.fitness, self.filled, self.descriptor)

    @property
    def best(self) -> Params:
        """Return the genome with the highest fitness; the genome of the first cell if all are empty."""
        return tree.index(self.genomes, jnp.where(self.filled, self.fitness, -jnp.inf).argmax())

    def sample(self, key: Key, n: int) -> Params:
        """Sample n elites uniformly with replacement, leaves [n, ...].

        If all cells are empty, the genomes with which the first cells were initialized are returned.
        """
        rank = (jax.random.uniform(key, (n,)) * self.filled.sum()).astype(jnp.int32)
        place = jnp.searchsorted(jnp.cumsum(self.filled), rank, side="right")
        return tree.index(self.genomes, jnp.where(self.filled.any(), place, jnp.arange(n) % self.cells))


@struct.dataclass
class InsertionResult:
    """Result of the insertion of n genomes into an archive.

    An archive of cells compares each genome with its content before the whole batch.
    """

    new_cell: Bool[Array, "*n"]  # whether its cell was empty
    entered: Bool[Array, "*n"]  # whether it entered the archive
    gain: Float[Array, "*n"]  # fitness minus threshold (0 if the threshold is -inf); -inf if not finite


@runtime_checkable
class Archive(Protocol):
    """Protocol of quality-diversity archives."""

    @property
    def num_descriptors(self) -> int:
        """Return the length of a behavior descriptor."""
        ...

    def empty(self, genomes: Params) -> Elites:
        """Return an archive without elites.

        Args:
            genomes: Genomes that are sampled until the archive has an elite, leaves [n, ...].
        """
        ...

    def add(self, elites: Elites, genomes: Params, quality: QDEvaluation, rate: Any) -> tuple[Elites, InsertionResult]:
        """Insert genomes into the archive.

        A genome never enters if its fitness or its descriptor is not finite.

        Args:
            elites: Content of the archive.
            genomes: Genomes, leaves [n, ...].
            quality: Fitness and descriptors of the genomes, leaves [n, ...].
            rate: Fraction by which a threshold moves to the fitness that enters, from 0 to 1.

        Returns:
            The content after the insertion, and the result for each genome, leaves [n].
        """
        ...


def create_elites(cells: int, genomes: Params, num_descriptors: int, lowest: float) -> Elites:
    """Return empty cells, whose genomes are initialized with the given ones, leaves [n, ...], in turn.

    `lowest` is the threshold of the empty cells.
    """
    dealt = jnp.arange(cells) % tree.leading_size(genomes)
    none = jnp.zeros(cells)
    thresholds = jnp.full(cells, lowest, jnp.float32)
    return Elites(tree.index(genomes, dealt), none, jnp.zeros((cells, num_descriptors)), none > 0, thresholds)


def write_elites(elites: Elites, to: Int[Array, " n"], genomes: Params, quality: QDEvaluation) -> Elites:
    """Write genomes, leaves [n, ...], into the cells `to`, which must be distinct.

    Genomes whose index is beyond the last cell are dropped.
    """

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
    """Return a mask of the genomes whose fitness and descriptor are finite."""
    return jnp.isfinite(quality.fitness) & jnp.isfinite(quality.descriptor).all(-1)


def concatenate_descriptors(names: Sequence[str], means: dict[str, Array], count: int) -> Float[Array, "n d"]:
    """Return the episode statistics with these names, scalars [n] or vectors [n, k], concatenated to descriptors.

    Raises OptionError if a name is unknown, or if the descriptors do not have length `count`.
    """
    for name in names:
        if name not in means:
            raise unknown_name_error("descriptors", name, means)
    descriptor = jnp.concatenate([means[name].reshape(len(means[name]), -1) for name in names], 1)
    found = descriptor.shape[1]
    require(found == count, "descriptors", list(names), f"must have {count} values in total, not {found}")
    return descriptor
