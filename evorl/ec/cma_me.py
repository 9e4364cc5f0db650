"""CMA-ME: searches that climb by how much they improve an archive."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from evorl import tree
from evorl.ec.archives import Elites, Entry
from evorl.ec.cma_es import CMAES, CMAESHyperparams, CMAESState
from evorl.ec.rows import rows
from evorl.errors import require, unknown
from evorl.types import Key, Params, Quality

RANKINGS = ("two_stage", "improvement")


@struct.dataclass
class ImprovementState:
    searches: Any  # of CMA-ES, leaves [copies, ...]
    restarts: Any  # [] int32


@dataclass(frozen=True)
class ImprovementEmitter:
    """`copies` CMA-ES of `each` genomes that climb by how much an archive improves (CMA-ME: arXiv:1912.02400).

    Parents are those that entered. With ranking two_stage new cells come first, then the others by gain; with
    improvement all by gain, as CMA-MAE has it, whose archive has a finite lowest threshold (arXiv:2205.10752). A search
    of which none entered, or that has become a point, starts again at a random elite.
    """

    copies: int = 15
    each: int = 36
    ranking: str = "two_stage"

    def __post_init__(self) -> None:
        require(self.copies >= 1, "copies", self.copies, "must be at least 1")
        require(self.each >= 2, "each", self.each, "must be at least 2")
        if self.ranking not in RANKINGS:
            raise unknown("ranking", self.ranking, RANKINGS)

    @property
    def size(self) -> int:
        return self.copies * self.each

    @property
    def cma_es(self) -> CMAES:
        """Of one search."""
        return CMAES(self.each, active=False)

    def hyperparams(self) -> CMAESHyperparams:
        return CMAESHyperparams()

    def init(self, key: Key, mean: Params, hyperparams: CMAESHyperparams) -> ImprovementState:
        search = self.cma_es.init(key, mean, hyperparams)
        return ImprovementState(tree.broadcast(search, self.copies), jnp.int32(0))

    def ask(self, key: Key, state: ImprovementState, elites: Elites, hyperparams: CMAESHyperparams) -> Params:
        ask = lambda key, search: self.cma_es.ask(key, search, hyperparams)[0]  # noqa: E731
        return tree.merge_axes(jax.vmap(ask)(jax.random.split(key, self.copies), state.searches))

    def tell(
        self,
        key: Key,
        told: tuple[Params, Quality, Entry],
        state: ImprovementState,
        elites: Elites,
        hyperparams: CMAESHyperparams,
    ) -> ImprovementState:
        genomes, _, entry = told
        first = entry.entered.astype(jnp.int32) + (entry.entered & entry.new)
        stage = first if self.ranking == "two_stage" else jnp.zeros_like(first)
        of_each = jax.tree.map(
            lambda x: x.reshape(self.copies, self.each, *x.shape[1:]), (rows(genomes), stage, entry.gain, entry.entered)
        )
        start = elites.sample(key, self.copies)

        def move(search: CMAESState, start: Params, members: Array, stage: Array, gain: Array, entered: Array) -> Any:
            order = jnp.lexsort((gain, stage))
            utility = jnp.zeros(self.each).at[order].set(jnp.arange(self.each, dtype=jnp.float32))
            count = entered.sum()
            moved = self.cma_es.update(members, utility, self.each, search, hyperparams, jnp.maximum(count, 1))
            over = (count == 0) | self.ended(moved)
            return tree.where(over, self.cma_es.start(start, hyperparams.initial_std), moved), over

        searches, over = jax.vmap(move)(state.searches, start, *of_each)
        return replace(state, searches=searches, restarts=state.restarts + over.sum())

    def ended(self, search: CMAESState) -> Bool[Array, ""]:
        """Whether a search is a point, or flat in some direction, or no numbers."""
        spread = jnp.abs(self.cma_es.covariance.spread(search.factor))
        good = (search.sigma * spread.max() > 1e-11) & ((spread.max() / spread.min()) ** 2 < 1e14)
        return ~(good & tree.has_no_nan(search.mean))
