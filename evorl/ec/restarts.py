"""Restarts of CMA-ES with other populations where it has stalled: IPOP and BIPOP."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from evorl import tree
from evorl.ec.cma_es import CMAES, CMAESHyperparams, CMAESState
from evorl.ec.noise import normal
from evorl.ec.rows import full_rank, member, row, rows
from evorl.errors import require
from evorl.hyperparameters import Number, default, hyperparameter
from evorl.types import Key, Metrics, Params


@struct.dataclass
class RestartsHyperparams:
    search: CMAESHyperparams = default(CMAESHyperparams)
    spread: Number = hyperparameter(1.0, 0, about="std of the means of later runs around the first, in initial stds")
    tol_fun: Number = hyperparameter(1e-12, 0, about="a run has stalled where its best fitness stays within this")


@struct.dataclass
class RestartsState:
    search: CMAESState
    start: Any  # the mean of the first run
    sigma: Any  # [] with which this run began
    members: Any  # [largest population, n]
    fitness: Any  # [largest population]
    asks: Any  # [] int32, so many make up a population of this run
    gathered: Any  # [] int32, of them so far
    history: Any  # [window], the best fitness of each generation of this run, the last one first
    mean_fitness: Any  # [] of the last generation of this run
    best_mean: Any  # of the finished runs
    best_fitness: Any  # [] the mean fitness of its last generation
    small: Any  # [] bool, whether this run is of BIPOP's small regime
    large_asks: Any  # [] int32, of the last run of the other one
    spent: Any  # [2] int32, asks of the large and the small regime
    restarts: Any  # [] int32


@dataclass(frozen=True)
class Restarts:
    """CMA-ES that starts again where it has stalled, with twice the population (IPOP; Auger & Hansen 2005).

    With bipop, runs of random smaller populations and steps take turns with these (Hansen 2009), on equal budgets. A
    population of 2^j evolver.population_size, j up to doublings, is gathered over 2^j asks. The center is the mean of
    the best run, finished or not, by the mean fitness of its last generation: the best fitness may be luck.
    """

    evolver: CMAES = field(default_factory=lambda: CMAES(10))
    doublings: int = 5
    bipop: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.doublings <= 20, "doublings", self.doublings, "must be between 0 and 20")

    def hyperparams(self) -> RestartsHyperparams:
        return RestartsHyperparams(self.evolver.hyperparams())

    @property
    def population_size(self) -> int:
        return self.evolver.population_size

    def init(self, key: Key, mean: Params, hyperparams: RestartsHyperparams) -> RestartsState:
        search = self.evolver.init(key, mean, hyperparams.search)
        n, slots = row(mean).size, self.population_size << self.doublings
        one, none = jnp.int32(1), jnp.int32(0)
        return tree.strong(
            RestartsState(
                search=search,
                start=mean,
                sigma=search.sigma,
                members=jnp.zeros((slots, n)),
                fitness=jnp.full(slots, -jnp.inf),
                asks=one,
                gathered=none,
                history=jnp.full(math.ceil(window(n, self.population_size)), -jnp.inf),
                mean_fitness=jnp.float32(-jnp.inf),
                best_mean=mean,
                best_fitness=jnp.float32(-jnp.inf),
                small=jnp.bool_(False),
                large_asks=one,
                spent=jnp.zeros(2, jnp.int32),
                restarts=none,
            )
        )

    def ask(self, key: Key, state: RestartsState, hyperparams: RestartsHyperparams) -> tuple[Params, RestartsState]:
        return self.evolver.ask(key, state.search, hyperparams.search)[0], state

    to_params = from_params = full_rank

    def tell(
        self,
        key: Key,
        genomes: Params,
        fitness: Float[Array, " n"],
        state: RestartsState,
        hyperparams: RestartsHyperparams,
    ) -> tuple[RestartsState, Metrics]:
        """Keeps the members; the distribution moves once they are a population."""
        at = state.gathered * self.population_size
        state = replace(
            state,
            members=jax.lax.dynamic_update_slice_in_dim(state.members, rows(genomes), at, 0),
            fitness=jax.lax.dynamic_update_slice_in_dim(state.fitness, fitness, at, 0),
            gathered=state.gathered + 1,
            spent=state.spent.at[state.small.astype(int)].add(1),
        )
        full = (state.gathered == state.asks).astype(jnp.int32)
        state = tree.repeat(full, lambda _, state: self._generation(key, state, hyperparams), state)
        population = (state.asks * self.population_size).astype(jnp.float32)
        restarts = state.restarts.astype(jnp.float32)
        return state, {"search_restarts": restarts, "population": population, "sigma": state.search.sigma}

    def solution(self, state: RestartsState) -> Params:
        return tree.where(state.mean_fitness >= state.best_fitness, state.search.mean, state.best_mean)

    def _generation(self, key: Key, state: RestartsState, hyperparams: RestartsHyperparams) -> RestartsState:
        size = state.asks * self.population_size
        valid = (jnp.arange(len(state.fitness)) < size) & ~jnp.isnan(state.fitness)
        fitness = jnp.where(valid, state.fitness, -jnp.inf)
        search = self.evolver.update(state.members, fitness, size, state.search, hyperparams.search)
        history = jnp.roll(state.history, 1).at[0].set(fitness.max())
        mean_fitness = jnp.where(valid, fitness, 0).sum() / valid.sum()
        mean_fitness = jnp.where(valid.any(), mean_fitness, -jnp.inf)
        state = replace(state, search=search, history=history, mean_fitness=mean_fitness, gathered=jnp.int32(0))
        stalled = self._stalled(state, size, hyperparams.tol_fun).astype(jnp.int32)
        return tree.repeat(stalled, lambda _, state: self._restart(key, state, hyperparams), state)

    def _stalled(self, state: RestartsState, size: Array, tol_fun: Number) -> Bool[Array, ""]:
        """TolHistFun, MaxIter, TolX, TolUpX, NoEffectCoord and ConditionCov (Hansen 2009, section 2)."""
        search, history = state.search, state.history
        mean = row(search.mean)
        recent = jnp.arange(len(history)) < window(mean.size, size)
        best, worst = (jnp.where(recent, history, -jnp.inf).max(), jnp.where(recent, history, jnp.inf).min())
        tol_fun = jnp.maximum(tol_fun, 4 * jnp.finfo(jnp.float32).eps * jnp.abs(best))
        flat = (search.generation >= window(mean.size, size)) & (best - worst <= tol_fun)
        late = search.generation >= 100 + 50 * (mean.size + 3) ** 2 / jnp.sqrt(size)
        stds = search.sigma * jnp.sqrt(self.evolver.covariance.variances(search.covariance))
        lost = ~((stds.max() > 1e-12 * state.sigma) & (stds.max() < 1e4 * state.sigma))
        spread = self.evolver.covariance.spread(search.factor)
        return flat | late | lost | (mean + 0.2 * stds == mean).any() | ((spread.max() / spread.min()) ** 2 > 1e14)

    def _restart(self, key: Key, state: RestartsState, hyperparams: RestartsHyperparams) -> RestartsState:
        initial_std = hyperparams.search.initial_std
        key_size, key_sigma, key_mean = jax.random.split(key, 3)
        small = jnp.bool_(self.bipop) & (state.spent[1] < state.spent[0])
        fewer = (state.large_asks / 2) ** (jax.random.uniform(key_size) ** 2)
        large_asks = jnp.where(small, state.large_asks, jnp.minimum(2 * state.large_asks, 1 << self.doublings))
        sigma = initial_std * jnp.where(small, 10 ** (-2 * jax.random.uniform(key_sigma)), 1.0)
        start = row(state.start)
        mean = member(start + hyperparams.spread * initial_std * normal(key_mean, start.shape), state.start)
        return replace(
            state,
            search=self.evolver.start(mean, sigma),
            sigma=sigma,
            asks=jnp.where(small, jnp.maximum(fewer.astype(jnp.int32), 1), large_asks),
            history=jnp.full_like(state.history, -jnp.inf),
            mean_fitness=jnp.float32(-jnp.inf),
            best_mean=self.solution(state),
            best_fitness=jnp.maximum(state.mean_fitness, state.best_fitness),
            small=small,
            large_asks=large_asks,
            restarts=state.restarts + 1,
        )


def window(n: int, size: Number) -> Any:
    """Generations over which a stalled run has not improved."""
    return 10 + 30 * n / size
