"""Improvement emitters of CMA-ME and CMA-MAE: CMA-ES searches that maximize the improvement of an archive."""

from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import tree
from evorl.ec.archives import Elites, InsertionResult
from evorl.ec.cma_es import CMAES, CMAESState
from evorl.ec.flatten import flatten_population
from evorl.errors import require, require_int, unknown_name_error
from evorl.parts import part
from evorl.types import Key, Params, QDEvaluation

RANKINGS = ("two_stage", "improvement")


@struct.dataclass
class ImprovementState:
    searches: CMAESState  # leaves [copies, ...]
    restarts: Int[Array, ""]


@part
class ImprovementEmitter:
    """Improvement emitter of CMA-ME and CMA-MAE: CMA-ES searches that maximize the improvement of an archive.

    With ranking="two_stage" (CMA-ME), genomes that fill a new cell rank first, followed by those that improve
    a cell, and last those that do not enter the archive. Within each group they rank by gain. The parents are
    the genomes that entered the archive. A search restarts at a random elite if none of its genomes entered.

    With ranking="improvement" (CMA-MAE), all genomes rank by gain, and the parents are the better half, or
    `search.num_elites` genomes if set. A search restarts at a random elite if all of its gains are equal. For
    CMA-MAE, the archive has a finite `threshold_min`.

    With either ranking, a search also restarts if its distribution has become degenerate. Parents and
    restarts are as in pyribs.

    Args:
        copies: Number of CMA-ES searches.
        search: CMA-ES of each search; its `active` must be False, as in pyribs.
        ranking: "two_stage" or "improvement".

    Source: CMA-ME, arXiv:1912.02400; CMA-MAE, arXiv:2205.10752.
    """

    copies: int = 15
    search: CMAES = field(default_factory=lambda: CMAES(36, active=False))
    ranking: str = "two_stage"

    def __post_init__(self) -> None:
        require_int("copies", self.copies)
        require(not self.search.active, "search.active", self.search.active, "must be False, as in pyribs")
        if self.ranking not in RANKINGS:
            raise unknown_name_error("ranking", self.ranking, RANKINGS)

    @property
    def size(self) -> int:
        return self.copies * self.search.population_size

    def init(self, key: Key, mean: Params) -> ImprovementState:
        return ImprovementState(tree.broadcast(self.search.init(key, mean), self.copies), jnp.int32(0))

    def ask(self, key: Key, state: ImprovementState, elites: Elites) -> Params:
        ask = lambda key, search: self.search.ask(key, search)[0]  # noqa: E731
        return tree.merge_axes(jax.vmap(ask)(jax.random.split(key, self.copies), state.searches))

    def tell(
        self,
        key: Key,
        told: tuple[Params, QDEvaluation, InsertionResult],
        state: ImprovementState,
        elites: Elites,
    ) -> ImprovementState:
        genomes, _, entry = told
        each = self.search.population_size
        two_stage = self.ranking == "two_stage"
        first = entry.entered.astype(jnp.int32) + (entry.entered & entry.new_cell)
        stage = first if two_stage else jnp.zeros_like(first)
        of_each = jax.tree.map(
            lambda x: x.reshape(self.copies, each, *x.shape[1:]),
            (flatten_population(genomes), stage, entry.gain, entry.entered),
        )
        start = elites.sample(key, self.copies)

        def move(search: CMAESState, start: Params, members: Array, stage: Array, gain: Array, entered: Array) -> Any:
            order = jnp.lexsort((gain, stage))
            utility = jnp.zeros(each).at[order].set(jnp.arange(each, dtype=jnp.float32))
            parents = jnp.maximum(entered.sum(), 1) if two_stage else None  # None: the better half
            moved = self.search.update(members, utility, each, search, parents)
            lost = ~entered.any() if two_stage else ~(gain.max() > gain.min())
            over = lost | self.is_degenerate(moved)
            return tree.select(over, self.search.init_isotropic(start, self.search.initial_std), moved), over

        searches, over = jax.vmap(move)(state.searches, start, *of_each)
        return replace(state, searches=searches, restarts=state.restarts + over.sum())

    def is_degenerate(self, search: CMAESState) -> Bool[Array, ""]:
        """Return whether a search has collapsed to a point, is ill-conditioned, or contains NaN.

        Args:
            search: State of one search.
        """
        spread = jnp.abs(self.search.covariance.factor_diagonal(search.factor))
        good = (search.sigma * spread.max() > 1e-11) & ((spread.max() / spread.min()) ** 2 < 1e14)
        return ~(good & tree.is_nan_free(search.mean))
