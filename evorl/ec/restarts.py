"""CMA-ES with restarts and varying population sizes: IPOP and BIPOP."""

import math
from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl import tree
from evorl.ec.cma_es import CMAES, CMAESState
from evorl.ec.flatten import flatten_member, flatten_population, unflatten_member
from evorl.ec.noise import normal
from evorl.ec.shaping import sanitize_fitness
from evorl.errors import require
from evorl.parts import Number, number, part
from evorl.types import Evolver, Key, Metrics, Params


@struct.dataclass
class RestartsState:
    search: CMAESState
    initial_mean: Params  # initial mean of the first run
    initial_sigma: Float[Array, ""]  # initial sigma of the current run
    members: Float[Array, "largest_population n"]
    fitness: Float[Array, " largest_population"]
    asks: Int[Array, ""]  # calls of ask per population of the current run
    num_gathered: Int[Array, ""]  # calls of ask in the current population so far
    history: Float[Array, " window"]  # best fitness of each generation of the current run, newest first
    mean_fitness: Float[Array, ""]  # of the last generation of the current run
    best_mean: Params  # mean of the best finished run
    best_fitness: Float[Array, ""]  # mean fitness of its last generation
    small_regime: Bool[Array, ""]  # whether the current run belongs to BIPOP's small regime
    large_asks: Int[Array, ""]  # asks of the last run of the large regime
    asks_spent: Int[Array, "2"]  # calls of ask in the large and the small regime
    restarts: Int[Array, ""]


@part
class Restarts(Evolver):
    """CMA-ES that restarts when it stalls, each time with a doubled population (IPOP).

    With `bipop`, these runs alternate with runs that have a smaller random population and a smaller random
    initial step size (BIPOP). The next run is a small one if the small runs have used fewer evaluations so
    far.

    `ask` always returns evolver.population_size individuals. A population of k times as many is therefore
    gathered over k calls of `ask` and `tell`, k at most 2^doublings.

    The solution is the mean of the best run, finished or not. Runs are compared by the mean fitness of their
    last generation, since the best fitness of a single individual may be luck.

    Args:
        evolver: CMA-ES; its population_size is used in the first run.
        doublings: Maximum number of times that the population doubles, from 0 to 20.
        bipop: Whether to use BIPOP instead of IPOP.

    Source: IPOP, Auger & Hansen 2005; BIPOP, Hansen 2009.
    """

    evolver: CMAES = field(default_factory=lambda: CMAES(10))
    doublings: int = 5
    bipop: bool = False
    spread: Number = number(
        1.0, 0, about="standard deviation of later initial means around the first one, in units of initial_std"
    )
    tol_fun: Number = number(1e-12, 0, about="a run has stalled if its best fitness has varied by at most this")

    def __post_init__(self) -> None:
        require(0 <= self.doublings <= 20, "doublings", self.doublings, "must be between 0 and 20")

    @property
    def population_size(self) -> int:
        """Return the number of individuals per `ask`, which is the population size of the first run."""
        return self.evolver.population_size

    @property
    def keeps_best(self) -> bool:
        return True

    def init(self, key: Key, mean: Params) -> RestartsState:
        search = self.evolver.init(key, mean)
        n, slots = flatten_member(mean).size, self.population_size << self.doublings
        one, none = jnp.int32(1), jnp.int32(0)
        return tree.drop_weak_types(
            RestartsState(
                search=search,
                initial_mean=mean,
                initial_sigma=search.sigma,
                members=jnp.zeros((slots, n)),
                fitness=jnp.full(slots, -jnp.inf),
                asks=one,
                num_gathered=none,
                history=jnp.full(math.ceil(stall_window(n, self.population_size)), -jnp.inf),
                mean_fitness=jnp.float32(-jnp.inf),
                best_mean=mean,
                best_fitness=jnp.float32(-jnp.inf),
                small_regime=jnp.bool_(False),
                large_asks=one,
                asks_spent=jnp.zeros(2, jnp.int32),
                restarts=none,
            )
        )

    def ask(self, key: Key, state: RestartsState) -> tuple[Params, RestartsState]:
        return self.evolver.ask(key, state.search)[0], state

    def tell(
        self,
        key: Key,
        genomes: Params,
        fitness: Float[Array, " n"],
        state: RestartsState,
    ) -> tuple[RestartsState, Metrics]:
        """Store the individuals, and update the distribution once they make up a population."""
        at = state.num_gathered * self.population_size
        state = replace(
            state,
            members=jax.lax.dynamic_update_slice_in_dim(state.members, flatten_population(genomes), at, 0),
            fitness=jax.lax.dynamic_update_slice_in_dim(state.fitness, sanitize_fitness(fitness), at, 0),
            num_gathered=state.num_gathered + 1,
            asks_spent=state.asks_spent.at[state.small_regime.astype(int)].add(1),
        )
        full = (state.num_gathered == state.asks).astype(jnp.int32)
        state = tree.masked_fori_loop(full, lambda _, state: self._end_generation(key, state), state)
        population = (state.asks * self.population_size).astype(jnp.float32)
        restarts = state.restarts.astype(jnp.float32)
        return state, {"search_restarts": restarts, "population": population, "sigma": state.search.sigma}

    def solution(self, state: RestartsState) -> Params:
        return tree.select(state.mean_fitness >= state.best_fitness, state.search.mean, state.best_mean)

    def _end_generation(self, key: Key, state: RestartsState) -> RestartsState:
        size = state.asks * self.population_size
        valid = (jnp.arange(len(state.fitness)) < size) & ~jnp.isneginf(state.fitness)
        fitness = jnp.where(valid, state.fitness, -jnp.inf)
        search = self.evolver.update(state.members, fitness, size, state.search)
        history = jnp.roll(state.history, 1).at[0].set(fitness.max())
        mean_fitness = jnp.where(valid, fitness, 0).sum() / valid.sum()
        mean_fitness = jnp.where(valid.any(), mean_fitness, -jnp.inf)
        state = replace(state, search=search, history=history, mean_fitness=mean_fitness, num_gathered=jnp.int32(0))
        stalled = self._has_stalled(state, size, self.tol_fun).astype(jnp.int32)
        return tree.masked_fori_loop(stalled, lambda _, state: self._restart(key, state), state)

    def _has_stalled(self, state: RestartsState, size: Array, tol_fun: Number) -> Bool[Array, ""]:
        """Return whether a stopping criterion of Hansen 2009, section 2, is met.

        The criteria are TolHistFun, MaxIter, TolX, TolUpX, NoEffectCoord and ConditionCov.
        """
        search, history = state.search, state.history
        mean = flatten_member(search.mean)
        recent = jnp.arange(len(history)) < stall_window(mean.size, size)
        best, worst = (jnp.where(recent, history, -jnp.inf).max(), jnp.where(recent, history, jnp.inf).min())
        tol_fun = jnp.maximum(tol_fun, 4 * jnp.finfo(jnp.float32).eps * jnp.abs(best))
        flat = (search.generation >= stall_window(mean.size, size)) & (best - worst <= tol_fun)
        late = search.generation >= 100 + 50 * (mean.size + 3) ** 2 / jnp.sqrt(size)
        stds = search.sigma * jnp.sqrt(self.evolver.covariance.variances(search.covariance))
        lost = ~((stds.max() > 1e-12 * state.initial_sigma) & (stds.max() < 1e4 * state.initial_sigma))
        spread = self.evolver.covariance.factor_diagonal(search.factor)
        return flat | late | lost | (mean + 0.2 * stds == mean).any() | ((spread.max() / spread.min()) ** 2 > 1e14)

    def _restart(self, key: Key, state: RestartsState) -> RestartsState:
        initial_std = self.evolver.initial_std
        key_size, key_sigma, key_mean = jax.random.split(key, 3)
        small = jnp.bool_(self.bipop) & (state.asks_spent[1] < state.asks_spent[0])
        fewer = (state.large_asks / 2) ** (jax.random.uniform(key_size) ** 2)
        large_asks = jnp.where(small, state.large_asks, jnp.minimum(2 * state.large_asks, 1 << self.doublings))
        sigma = initial_std * jnp.where(small, 10 ** (-2 * jax.random.uniform(key_sigma)), 1.0)
        start = flatten_member(state.initial_mean)
        mean = unflatten_member(start + self.spread * initial_std * normal(key_mean, start.shape), state.initial_mean)
        return replace(
            state,
            search=self.evolver.init_isotropic(mean, sigma),
            initial_sigma=sigma,
            asks=jnp.where(small, jnp.maximum(fewer.astype(jnp.int32), 1), large_asks),
            history=jnp.full_like(state.history, -jnp.inf),
            mean_fitness=jnp.float32(-jnp.inf),
            best_mean=self.solution(state),
            best_fitness=jnp.maximum(state.mean_fitness, state.best_fitness),
            small_regime=small,
            large_asks=large_asks,
            restarts=state.restarts + 1,
        )


def stall_window(n: int, size: Number) -> Any:
    """Return the number of generations without improvement after which a run has stalled."""
    return 10 + 30 * n / size
