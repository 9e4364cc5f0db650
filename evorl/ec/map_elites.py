"""MAP-Elites, a quality-diversity algorithm that keeps the fittest genome of each cell of an archive."""

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Array

from evorl import tree
from evorl.bounds import BoundTransform
from evorl.ec.archives import Archive, Elites, concatenate_descriptors
from evorl.ec.cells import GridArchive, Tessellation
from evorl.ec.emitters import Emitter, IsoLineEmitter
from evorl.ec.flatten import flatten_population, unflatten_population
from evorl.errors import require, unknown_name_error
from evorl.parts import Number, number, part
from evorl.types import Bound, Evolver, Key, Metrics, Params, QDEvaluation, SearchResults, State

DTYPES = ("float32", "bfloat16")


@struct.dataclass
class MapElitesState:
    elites: Elites
    emitter: State
    result_elites: Elites | None = None  # only if thresholds differ from the fitness of the elites

    @property
    def fittest_elites(self) -> Elites:
        """Return the elites with the fittest genome of each cell."""
        return self.result_elites if isinstance(self.result_elites, Elites) else self.elites


@part
class MapElites(Evolver):
    """MAP-Elites: an emitter varies the elites of an archive, and the archive keeps the best genome of each cell.

    The first generation is derived by the emitter from independently initialized individuals. The solution is
    the elite with the highest fitness; `results` returns all elites.

    If the archive has a finite `threshold_min`, as for CMA-MAE, it may replace an elite by a less fit
    genome. The emitter continues from this archive, and a second archive keeps the fittest genome of each
    cell for the results.

    Args:
        archive: Archive of elites.
        emitter: Emitter that proposes the genomes of each generation.
        descriptors: Names of the episode statistics of the environment, scalars or vectors, that are
            concatenated to the behavior descriptor.
        qd_score_offset: Value that is subtracted from the fitness of each elite in the QD score.
        dtype: Type of the stored elites and thereby of all parameters that are evaluated, "float32" or
            "bfloat16".
        low: Lower bound to which parameters are clipped; a problem sets its own.
        high: Upper bound to which parameters are clipped; a problem sets its own.

    Source: Mouret & Clune 2015, arXiv:1504.04909.
    """

    archive: Archive = field(default_factory=GridArchive)
    emitter: Emitter = field(default_factory=IsoLineEmitter)
    descriptors: Sequence[str] = ("descriptor",)
    qd_score_offset: float = 0.0
    dtype: str = "float32"
    low: Bound = -float("inf")
    high: Bound = float("inf")
    archive_learning_rate: Number = number(
        1.0, 0, 1, "alpha of CMA-MAE: fraction by which the threshold of a cell moves to the fitness that enters"
    )

    objectives = FrozenDict({"return": 1.0})

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptors", tuple(self.descriptors))
        require(len(self.descriptors) > 0, "descriptors", [], "must name at least one")
        if self.dtype not in DTYPES:
            raise unknown_name_error("dtype", self.dtype, DTYPES)
        BoundTransform(self.low, self.high)

    @property
    def population_size(self) -> int:
        """Return the number of genomes per generation, which is the size of the emitter."""
        return self.emitter.size

    @property
    def result_archive(self) -> Archive | None:
        """Return the second archive, which keeps the fittest genomes; None if `archive` itself keeps them."""
        if not isinstance(self.archive, Tessellation) or not math.isfinite(self.archive.threshold_min):
            return None
        return replace(cast(Any, self.archive), threshold_min=-math.inf)

    def with_bounds(self, low: Bound, high: Bound, num_objectives: int) -> "MapElites":
        del num_objectives
        return replace(self, low=low, high=high)

    def compute_fitness(self, means: dict[str, Array]) -> QDEvaluation:
        return QDEvaluation(
            means["return"], concatenate_descriptors(self.descriptors, means, self.archive.num_descriptors)
        )

    def init(self, key: Key, mean: Params) -> MapElitesState:
        return self.from_members(key, tree.broadcast(mean, self.population_size), mean)

    def from_members(self, key: Key, members: Params, mean: Params) -> MapElitesState:
        """Return a state whose first generation the emitter derives from the given individuals, leaves [n, ...]."""
        emitter = self.emitter.init(key, mean)
        genomes = self.to_genome(members)
        results = self.result_archive.empty(genomes) if self.result_archive is not None else None
        return MapElitesState(self.archive.empty(genomes), emitter, results)

    def ask(self, key: Key, state: MapElitesState) -> tuple[Params, MapElitesState]:
        """Return the genomes of the emitter, clipped to the bounds, leaves [n, ...]."""
        asked = self.emitter.ask(key, state.emitter, state.elites)
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        if np.isfinite(low).any() or np.isfinite(high).any():
            asked = unflatten_population(jnp.clip(flatten_population(asked), low, high), tree.index(asked, 0))
        return self.to_genome(asked), state

    def to_params(self, state: MapElitesState, genome: Params) -> Params:
        del state
        return to_float32(genome)

    def from_params(self, state: MapElitesState, params: Params) -> Params:
        del state
        return self.to_genome(params)

    def tell(
        self,
        key: Key,
        genomes: Params,
        fitness: QDEvaluation,
        state: MapElitesState,
    ) -> tuple[MapElitesState, Metrics]:
        elites, entry = self.archive.add(state.elites, genomes, fitness, self.archive_learning_rate)
        told = to_float32(genomes), fitness, entry
        emitter = self.emitter.tell(key, told, state.emitter, elites)
        results = None
        if self.result_archive is not None:
            assert state.result_elites is not None
            results, _ = self.result_archive.add(state.result_elites, genomes, fitness, jnp.float32(1))
        after = MapElitesState(elites, emitter, results)
        fittest = after.fittest_elites
        metrics = {
            "archive/qd_score": fittest.sum_fitness(self.qd_score_offset),
            "archive/coverage": fittest.count / fittest.cells,
            "archive/best": fittest.blocks.best.max(),
            "archive/entered": entry.entered.mean(),
        }
        return after, metrics

    def solution(self, state: MapElitesState) -> Params:
        return to_float32(state.fittest_elites.best)

    def results(self, state: MapElitesState) -> SearchResults:
        """Return the fittest genome of each cell as float32 parameters."""
        found = state.fittest_elites.results
        return replace(found, params=to_float32(found.params))

    def to_genome(self, params: Params) -> Params:
        """Return parameters in the dtype of the archive.

        Args:
            params: Parameters, of one individual or of several.
        """
        return jax.tree.map(lambda x: x.astype(self.dtype), params)


def to_float32(genomes: Params) -> Params:
    """Return genomes as float32 parameters."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), genomes)
