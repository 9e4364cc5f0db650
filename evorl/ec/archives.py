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
from evorl.errors import OptionError, require
from evorl.types import Key, Params, QDEvaluation, SearchResults

CELLS_PER_BLOCK = 128  # a batch of n genomes recomputes the statistics of at most n blocks


@struct.dataclass
class BlockStatistics:
    """Statistics of consecutive blocks of CELLS_PER_BLOCK cells, so that no step has to read a whole archive."""

    count: Int[Array, " blocks"]  # filled cells
    fitness: Float[Array, " blocks"]  # sum of the fitness
    best: Float[Array, " blocks"]  # highest fitness; -inf if all cells are empty


@struct.dataclass
class Elites:
    """Content of an archive: each of its cells is empty or holds one genome."""

    genomes: Params  # leaves [cells, ...]
    fitness: Float[Array, " cells"]  # 0 if empty
    descriptor: Float[Array, "cells d"]
    filled: Bool[Array, " cells"]
    threshold: Float[Array, " cells"]  # fitness must exceed it to enter
    order: Int[Array, " cells"]  # the filled cells, in the order in which they were filled
    blocks: BlockStatistics

    @property
    def cells(self) -> int:
        """Return the number of cells."""
        return self.fitness.shape[0]

    @property
    def results(self) -> SearchResults:
        """Return all cells as search results; the valid mask marks the filled ones."""
        return SearchResults(self.genomes, self.fitness, self.filled, self.descriptor)

    @property
    def count(self) -> Int[Array, ""]:
        """Return the number of filled cells."""
        return self.blocks.count.sum()

    @property
    def best(self) -> Params:
        """Return the genome with the highest fitness; the genome of the first cell if all are empty."""
        cells = list_cells(self.blocks.best.argmax())
        return tree.index(self.genomes, cells[jnp.where(*self._read(cells), -jnp.inf).argmax()])

    def sample(self, key: Key, n: int) -> Params:
        """Sample n elites uniformly with replacement, leaves [n, ...].

        If all cells are empty, the genomes with which the first cells were initialized are returned.
        """
        chosen = self.order[(jax.random.uniform(key, (n,)) * self.count).astype(jnp.int32)]
        return tree.index(self.genomes, jnp.where(self.count > 0, chosen, jnp.arange(n) % self.cells))

    def sum_fitness(self, offset: float) -> Float[Array, ""]:
        """Return the sum of the fitness minus `offset` over all filled cells, the QD score."""
        return (self.blocks.fitness - self.blocks.count * offset).sum()

    def update_blocks(self, cells: Int[Array, " n"]) -> "Elites":
        """Return the elites with the statistics of all blocks that contain one of the given cells computed again."""
        if len(cells) >= len(self.blocks.count):  # the blocks of all cells are fewer
            padded = ((0, -self.cells % CELLS_PER_BLOCK),)
            split = lambda x: jnp.pad(x, padded).reshape(-1, CELLS_PER_BLOCK)  # noqa: E731
            return replace(self, blocks=summarize_blocks(split(self.filled), split(self.fitness)))
        changed = cells // CELLS_PER_BLOCK
        new = summarize_blocks(*self._read(list_cells(changed)))
        write = lambda old, new: old.at[changed].set(new, mode="drop")  # noqa: E731
        return replace(self, blocks=jax.tree.map(write, self.blocks, new))

    def _read(self, cells: Int[Array, "*n"]) -> tuple[Bool[Array, "*n"], Float[Array, "*n"]]:
        """Return whether cells are filled, and their fitness; cells beyond the last one are empty."""
        return self.filled.at[cells].get(mode="fill", fill_value=False), self.fitness.at[cells].get(mode="clip")


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

        A genome never enters if one of its parameters, its fitness or its descriptor is not finite.

        Args:
            elites: Content of the archive.
            genomes: Genomes, leaves [n, ...].
            quality: Fitness and descriptors of the genomes, leaves [n, ...].
            rate: Fraction by which a threshold moves to the fitness that enters, from 0 to 1.

        Returns:
            The content after the insertion, and the result for each genome, leaves [n].
        """
        ...


def create_elites(cells: int, genomes: Params, num_descriptors: int, threshold_min: float) -> Elites:
    """Return empty cells, whose genomes are initialized with the given ones, leaves [n, ...], in turn.

    `threshold_min` is the threshold of the empty cells.
    """
    dealt = jnp.arange(cells) % tree.leading_size(genomes)
    none, num_blocks = jnp.zeros(cells), -(-cells // CELLS_PER_BLOCK)
    thresholds = jnp.full(cells, threshold_min, jnp.float32)
    empty = jnp.zeros((num_blocks, 1))
    blocks = summarize_blocks(empty > 0, empty)
    descriptors, order = jnp.zeros((cells, num_descriptors)), jnp.zeros(cells, jnp.int32)
    return Elites(tree.index(genomes, dealt), none, descriptors, none > 0, thresholds, order, blocks)


def list_cells(block: Int[Array, "*n"]) -> Int[Array, "*n cells"]:
    """Return the cells of each block, which may go beyond the last cell."""
    return block[..., None] * CELLS_PER_BLOCK + jnp.arange(CELLS_PER_BLOCK)


def summarize_blocks(filled: Bool[Array, "n cells"], fitness: Float[Array, "n cells"]) -> BlockStatistics:
    """Return the statistics of n blocks, whose cells are given."""
    worth = jnp.where(filled, fitness, 0.0)
    return BlockStatistics(filled.sum(-1), worth.sum(-1), jnp.where(filled, fitness, -jnp.inf).max(-1))


def write_elites(elites: Elites, to: Int[Array, " n"], genomes: Params, quality: QDEvaluation) -> Elites:
    """Write genomes, leaves [n, ...], into the cells `to`, which must be distinct.

    Genomes whose index is beyond the last cell are dropped.
    """

    def write_leaf(old: Array, new: Array) -> Array:
        return old.at[to].set(new.astype(old.dtype), mode="drop", unique_indices=True)

    number = jnp.arange(len(to))
    new = ~elites.filled.at[to].get(mode="fill", fill_value=True)
    place = jnp.where(new, elites.count + jnp.cumsum(new) - 1, elites.cells + number)
    elites = replace(
        elites,
        order=elites.order.at[place].set(to, mode="drop", unique_indices=True),
        genomes=jax.tree.map(write_leaf, elites.genomes, genomes),
        fitness=write_leaf(elites.fitness, quality.fitness),
        descriptor=write_leaf(elites.descriptor, quality.descriptor),
        filled=write_leaf(elites.filled, jnp.ones(len(to), bool)),
    )
    return elites.update_blocks(to)


def is_finite(quality: QDEvaluation) -> Bool[Array, " n"]:
    """Return a mask of the genomes whose fitness and descriptor are finite."""
    return jnp.isfinite(quality.fitness) & jnp.isfinite(quality.descriptor).all(-1)


def concatenate_descriptors(names: Sequence[str], means: dict[str, Array], count: int) -> Float[Array, "n d"]:
    """Return the episode statistics with these names, scalars [n] or vectors [n, k], concatenated to descriptors.

    Raises OptionError if a name is unknown, or if the descriptors do not have length `count`.
    """
    known = [name for name in means if name != "return"]
    for name in names:
        if name not in means:
            told = f"{name} is none of the episode statistics of the environment"
            how = f"use {', '.join(known)}" if known else "it has none; use env=feet, env=position or problem=arm"
            raise OptionError(f"descriptors={list(names)}: {told}; {how}")
    descriptor = jnp.concatenate([means[name].reshape(len(means[name]), -1) for name in names], 1)
    found = descriptor.shape[1]
    require(found == count, "descriptors", list(names), f"must have {count} values in total, not {found}")
    return descriptor
