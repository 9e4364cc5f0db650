"""MAP-Elites: the best of every kind."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Array

from evorl import hyperparameters, tree
from evorl.bounds import Box
from evorl.ec.archives import Archive, Elites, described
from evorl.ec.cells import GridArchive, Tessellation
from evorl.ec.emitters import Emitter, IsoLineEmitter, IsoLineHyperparams
from evorl.ec.rows import population, rows
from evorl.errors import require, unknown
from evorl.hyperparameters import Number, default, hyperparameter
from evorl.types import Bound, Found, Key, Metrics, Params, Quality

DTYPES = ("float32", "bfloat16")


@struct.dataclass
class MapElitesHyperparams:
    """Those of the emitter, and of the archive."""

    emitter: Any = default(IsoLineHyperparams)
    threshold_rate: Number = hyperparameter(
        1.0, 0, 1, "alpha of CMA-MAE: how far the threshold of a cell moves to what enters"
    )


@struct.dataclass
class MapElitesState:
    elites: Elites
    emitter: Any
    results: Any = ()  # Elites, where the thresholds of elites are not their fitness

    @property
    def fittest(self) -> Elites:
        """The fittest genome of each cell."""
        return self.results if isinstance(self.results, Elites) else self.elites


@dataclass(frozen=True)
class MapElites:
    """An archive is filled by what an emitter makes of it (Mouret & Clune 2015, arXiv:1504.04909).

    The first genomes are the emitter's of members that are initialized apart. descriptors names what is told of
    episodes, numbers or vectors that the environment summarizes, which side by side are what the archive's cells are
    of. offset is what fitness is counted from in the QD score. dtype is that of the elites, and so of all parameters
    that are tried, which are clipped to low and high; a problem gives its own. The solution is the elite of the highest
    fitness; all are in `found`. An archive with a finite lowest threshold, as of CMA-MAE, may replace an elite by one
    that is less fit: emitters go on from it, and a second archive, of results, keeps the fittest.
    """

    archive: Archive = field(default_factory=GridArchive)
    emitter: Emitter = field(default_factory=IsoLineEmitter)
    descriptors: Sequence[str] = ("descriptor",)
    offset: float = 0.0
    dtype: str = "float32"
    low: Bound = -float("inf")
    high: Bound = float("inf")

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptors", tuple(self.descriptors))
        require(len(self.descriptors) > 0, "descriptors", [], "must name at least one")
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, DTYPES)
        Box(self.low, self.high)

    @property
    def objectives(self) -> Mapping[str, float]:
        """The return alone."""
        return FrozenDict({"return": 1.0})

    @property
    def population_size(self) -> int:
        return self.emitter.size

    def hyperparams(self) -> MapElitesHyperparams:
        return MapElitesHyperparams(hyperparameters.of(self.emitter))

    @property
    def results(self) -> Archive | None:
        """The archive of the fittest, of which each threshold is an elite's fitness; None where `archive` is one."""
        if not isinstance(self.archive, Tessellation) or not math.isfinite(self.archive.lowest):
            return None
        return replace(cast(Any, self.archive), lowest=-math.inf)

    def fitted(self, low: Bound, high: Bound, num_objectives: int) -> "MapElites":
        why = "keeps the best by one number; nsga2 takes several objectives"
        require(num_objectives == 1, "evolver", type(self).__name__, why)
        return replace(self, low=low, high=high)

    def fitness(self, means: dict[str, Array]) -> Quality:
        return Quality(means["return"], described(self.descriptors, means, self.archive.num_descriptors))

    def init(self, key: Key, mean: Params, hyperparams: MapElitesHyperparams) -> MapElitesState:
        return self.from_members(key, tree.broadcast(mean, self.population_size), mean, hyperparams)

    def from_members(
        self, key: Key, members: Params, mean: Params, hyperparams: MapElitesHyperparams
    ) -> MapElitesState:
        """The first generation is what the emitter makes of members, leaves [n, ...]."""
        emitter = self.emitter.init(key, mean, hyperparams.emitter)
        genomes = self.genome(members)
        results = self.results.empty(genomes) if self.results is not None else ()
        return MapElitesState(self.archive.empty(genomes), emitter, results)

    def ask(self, key: Key, state: MapElitesState, hyperparams: MapElitesHyperparams) -> tuple[Params, MapElitesState]:
        """Genomes, leaves [n, ...]."""
        asked = self.emitter.ask(key, state.emitter, state.elites, hyperparams.emitter)
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        if np.isfinite(low).any() or np.isfinite(high).any():
            asked = population(jnp.clip(rows(asked), low, high), tree.index(asked, 0))
        return self.genome(asked), state

    def to_params(self, state: MapElitesState, genome: Params, hyperparams: MapElitesHyperparams) -> Params:
        del state, hyperparams
        return full(genome)

    def from_params(self, state: MapElitesState, params: Params, hyperparams: MapElitesHyperparams) -> Params:
        del state, hyperparams
        return self.genome(params)

    def tell(
        self,
        key: Key,
        genomes: Params,
        fitness: Quality,
        state: MapElitesState,
        hyperparams: MapElitesHyperparams,
    ) -> tuple[MapElitesState, Metrics]:
        elites, entry = self.archive.add(state.elites, genomes, fitness, hyperparams.threshold_rate)
        told = full(genomes), fitness, entry
        emitter = self.emitter.tell(key, told, state.emitter, elites, hyperparams.emitter)
        results = ()
        if self.results is not None:
            results, _ = self.results.add(state.results, genomes, fitness, jnp.float32(1))
        after = MapElitesState(elites, emitter, results)
        fittest = after.fittest
        counted = jnp.where(fittest.filled, fittest.fitness - self.offset, 0)
        metrics = {
            "archive/qd_score": counted.sum(),
            "archive/coverage": fittest.filled.mean(),
            "archive/best": jnp.where(fittest.filled, fittest.fitness, -jnp.inf).max(),
            "archive/entered": entry.entered.mean(),
        }
        return after, metrics

    def solution(self, state: MapElitesState) -> Params:
        return full(state.fittest.best)

    def found(self, state: MapElitesState) -> Found:
        """The fittest of all cells."""
        found = state.fittest.found
        return replace(found, params=full(found.params))

    def genome(self, params: Params) -> Params:
        """Parameters as the archive keeps them."""
        return jax.tree.map(lambda x: x.astype(self.dtype), params)


def full(genomes: Params) -> Params:
    """Genomes as parameters."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), genomes)
