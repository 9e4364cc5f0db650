"""Archives whose cells are a grid, or the Voronoi cells of evenly spread centroids."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.ec.archives import Elites, InsertionResult, create_elites, is_finite, write_elites
from evorl.errors import require, require_int
from evorl.types import Params, QDEvaluation

CPU_BLOCK = 8  # descriptors at a time on a CPU, so that their distances to all cells stay in the cache
DISTANCES = 2**26  # distances at a time on an accelerator, 256 MB
EXACT = jax.lax.Precision.HIGHEST  # distances are differences of large sums


@runtime_checkable
class Tessellation(Protocol):
    """Protocol of a descriptor space that is divided into cells."""

    @property
    def cells(self) -> int:
        """Return the number of cells."""
        ...

    @property
    def num_descriptors(self) -> int:
        """Return the length of a behavior descriptor."""
        ...

    @property
    def threshold_min(self) -> float:
        """Return the threshold of an empty cell."""
        ...

    def find_cells(self, descriptor: Float[Array, "n d"]) -> Int[Array, " n"]:
        """Return the index of the cell of each descriptor.

        A descriptor outside of the bounds belongs to a cell at the edge.

        Args:
            descriptor: Behavior descriptors, shape [n, d].

        Returns:
            Indices, shape [n].
        """
        ...


def empty(self: Tessellation, genomes: Params) -> Elites:
    """Return an archive without elites, as `Archive.empty` specifies: every leaf of the elites has the axis [cells].

    The genomes, leaves [n, ...], are sampled as parents until the archive has an elite.
    """
    return create_elites(self.cells, genomes, self.num_descriptors, self.threshold_min)


def add(
    self: Tessellation, elites: Elites, genomes: Params, quality: QDEvaluation, rate: Any
) -> tuple[Elites, InsertionResult]:
    """Insert a batch of genomes, as `Archive.add` specifies; return the elites and how each genome fared.

    In each cell, the fittest genome of the batch becomes the elite if its fitness is above the threshold of
    the cell. If several have the same fitness, the first one does.

    If `threshold_min` is -inf, or the rate is 1, the threshold of a cell is the fitness of its elite
    (Mouret & Clune 2015, arXiv:1504.04909). Otherwise thresholds move gradually (Fontaine & Nikolaidis 2023,
    arXiv:2205.10752, algorithm 1): if k genomes of a batch enter a cell, its threshold moves k times towards
    their mean fitness, as in pyribs. An elite may then be replaced by a less fit genome, so that a second
    archive is needed to keep the fittest.
    """
    n, fitness = len(quality.fitness), quality.fitness
    sound = is_finite(quality) & tree.find_finite_rows(genomes)
    cell = jnp.where(sound, self.find_cells(quality.descriptor), elites.cells)
    at = lambda x, fill: x.at[cell].get(mode="fill", fill_value=fill)  # noqa: E731
    bar, new = at(elites.threshold, jnp.inf), ~at(elites.filled, True)
    entered = fitness > bar
    gain = jnp.where(cell < elites.cells, fitness - jnp.where(jnp.isfinite(bar), bar, 0), -jnp.inf)

    # number the cells of the batch, so that no array is as long as the archive
    group = jnp.unique(cell, return_inverse=True, size=n)[1]
    within, nothing, number = jnp.where(entered, group, n), jnp.zeros(n), jnp.arange(n)
    highest = (nothing - jnp.inf).at[within].max(fitness, mode="drop")[group]
    best = entered & (fitness == highest)
    first = jnp.full(n, n).at[jnp.where(best, group, n)].min(number, mode="drop")[group]
    to = jnp.where(best & (number == first), cell, elites.cells + number)
    threshold = jnp.maximum(bar, highest)
    if math.isfinite(self.threshold_min):
        count = nothing.at[within].add(1.0, mode="drop")[group]
        mean = nothing.at[within].add(fitness, mode="drop")[group] / jnp.maximum(count, 1)
        stays = (1 - rate) ** count
        threshold = jnp.where(rate < 1, stays * bar + (1 - stays) * mean, threshold)
    elites = write_elites(elites, to, genomes, quality)
    thresholds = elites.threshold.at[to].set(threshold, mode="drop", unique_indices=True)
    return replace(elites, threshold=thresholds), InsertionResult(new, entered, gain)


def check_box(low: Sequence[float], high: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lower and upper bounds of a box as tuples; raise OptionError if they do not define a box."""
    low, high = tuple(map(float, low)), tuple(map(float, high))
    require(len(low) > 0, "low", list(low), "must have a number for each descriptor")
    require(len(low) == len(high), "high", list(high), f"must have as many numbers as low, {len(low)}")
    above = all(a < b and math.isfinite(b - a) for a, b in zip(low, high, strict=True))
    require(above, "high", list(high), f"must be above low, {list(low)}, and both must be finite")
    return low, high


@dataclass(frozen=True)
class GridArchive:
    """Archive whose cells are a regular grid over the descriptor space.

    A descriptor outside of the bounds belongs to the nearest cell at the edge.

    Args:
        low: Lower bound of each descriptor.
        high: Upper bound of each descriptor.
        shape: Number of cells along each descriptor.
        threshold_min: Threshold of an empty cell; fitness must exceed it. A finite value enables the moving
            thresholds of CMA-MAE.

    Source: Mouret & Clune 2015, arXiv:1504.04909.
    """

    low: Sequence[float] = (0.0, 0.0)
    high: Sequence[float] = (1.0, 1.0)
    shape: Sequence[int] = (32, 32)
    threshold_min: float = -float("inf")

    def __post_init__(self) -> None:
        low, high = check_box(self.low, self.high)
        shape = tuple(self.shape)
        require(len(shape) == len(low), "shape", list(shape), f"must have a number for each descriptor, {len(low)}")
        whole = all(isinstance(k, int) and k >= 1 for k in shape) and math.prod(shape) < 2**31
        require(
            whole, "shape", list(shape), "must be whole numbers, at least 1, for fewer than 2147483648 cells in total"
        )
        for name, value in (("low", low), ("high", high), ("shape", shape)):
            object.__setattr__(self, name, value)

    @property
    def num_descriptors(self) -> int:
        """Return the length of a behavior descriptor."""
        return len(self.low)

    @property
    def cells(self) -> int:
        """Return the number of cells."""
        return math.prod(self.shape)

    def find_cells(self, descriptor: Float[Array, "n d"]) -> Int[Array, " n"]:
        """Return the index of the grid cell of each descriptor [n, d], shape [n]."""
        low, high, shape = np.array(self.low, np.float32), np.array(self.high, np.float32), np.array(self.shape)
        along = jnp.clip(jnp.floor((descriptor - low) / (high - low) * shape), 0, shape - 1).astype(jnp.int32)
        return jnp.ravel_multi_index(tuple(jnp.moveaxis(along, -1, 0)), tuple(self.shape), mode="clip")

    empty, add = empty, add


@lru_cache(maxsize=8)
def _compute_centroids(
    low: tuple[float, ...], high: tuple[float, ...], cells: int, samples: int, seed: int
) -> Float[np.ndarray, "cells d"]:
    """Return the centroids of uniform samples by 20 steps of k-means, with a search tree for the nearest ones."""
    from scipy.spatial import KDTree

    random = np.random.default_rng(seed)
    points = random.uniform(low, high, (samples, len(low)))
    centroids = points[random.choice(samples, cells, replace=False)]
    for _ in range(20):
        nearest = KDTree(centroids).query(points)[1]
        count = np.bincount(nearest, minlength=cells)[:, None]
        sums = np.stack([np.bincount(nearest, x, cells) for x in points.T], 1)
        centroids = np.where(count > 0, sums / np.maximum(count, 1), centroids)
    found = centroids.astype(np.float32)
    found.setflags(write=False)  # all archives with these arguments share it
    return found


@dataclass(frozen=True)
class CVTArchive:
    """Archive whose cells are a centroidal Voronoi tessellation (CVT) of the descriptor space.

    A descriptor belongs to the cell with the nearest centroid. The centroids are computed by k-means from
    uniform samples, and are the same for the same seed.

    Args:
        low: Lower bound of each descriptor.
        high: Upper bound of each descriptor.
        cells: Number of cells.
        samples: Number of uniform samples for k-means, at least `cells`.
        seed: Seed of the samples.
        threshold_min: Threshold of an empty cell; fitness must exceed it. A finite value enables the moving
            thresholds of CMA-MAE.

    Source: Vassiliades et al. 2018, arXiv:1610.05729.
    """

    low: Sequence[float] = (0.0, 0.0)
    high: Sequence[float] = (1.0, 1.0)
    cells: int = 1024
    samples: int = 25_000
    seed: int = 0
    threshold_min: float = -float("inf")

    def __post_init__(self) -> None:
        low, high = check_box(self.low, self.high)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        require_int("cells", self.cells)
        require_int("seed", self.seed, 0)
        require_int("samples", self.samples)
        require(self.samples >= self.cells, "samples", self.samples, f"must be at least cells, {self.cells}")

    @property
    def num_descriptors(self) -> int:
        """Return the length of a behavior descriptor."""
        return len(self.low)

    @property
    def centroids(self) -> Float[np.ndarray, "cells d"]:
        """Return the centroids of the cells, shape [cells, d]."""
        return _compute_centroids(tuple(self.low), tuple(self.high), self.cells, self.samples, self.seed)

    def find_cells(self, descriptor: Float[Array, "n d"]) -> Int[Array, " n"]:
        """Return the index of the nearest centroid of each descriptor [n, d], shape [n]."""
        middle = (np.asarray(self.low) + np.asarray(self.high)) / 2  # small numbers cancel less in float32
        centroids = (self.centroids - middle).astype(np.float32)
        squares, number = (centroids**2).sum(1), np.arange(self.cells, dtype=np.int32)

        def nearest(x: Float[Array, " d"]) -> Int[Array, ""]:
            distance = squares - 2 * jnp.matmul(centroids, x, precision=EXACT)  # without |x|^2, which all share
            return jnp.where(distance <= distance.min(), number, self.cells - 1).min()  # ten times as fast as argmin

        block = CPU_BLOCK if jax.default_backend() == "cpu" else max(DISTANCES // self.cells, 1)
        return jax.lax.map(nearest, descriptor - middle.astype(np.float32), batch_size=block)

    empty, add = empty, add
