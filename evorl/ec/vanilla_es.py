"""Canonical evolution strategy."""

from dataclasses import field, replace

from flax import struct
from jaxtyping import Array, Float

from evorl.ec.flatten import sum_over_rows, sum_weighted, unflatten_member
from evorl.ec.noise import Noise
from evorl.ec.shaping import argsort_best_first, recombination_weights
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.types import Evolver, Key, Metrics, Params


@struct.dataclass
class VanillaESState:
    mean: Params
    table: Float[Array, " table_size"] | None  # noise table, if the noise uses one


@part
class VanillaES(Evolver):
    """Canonical evolution strategy with a fixed noise.

    The mean moves to the weighted mean of the elites. The i-th best of m elites has a weight proportional to
    log(m + 1/2) - log(i). The default of std is from table 3c of EvoRL (arXiv:2501.15129).

    Args:
        population_size: Number of individuals per generation.
        num_elites: Number of elites.
        noise: Source of the random numbers.

    Source: Chrabaszcz et al. 2018, arXiv:1802.08842, algorithm 2.
    """

    population_size: int = 128
    num_elites: int = 16
    noise: Noise = field(default_factory=Noise)
    std: Number = number(
        0.02, 0, about="standard deviation of the noise on every parameter", prior=LogUniform(5e-3, 0.5)
    )

    def __post_init__(self) -> None:
        n = self.population_size
        require_int("population_size", n, 2)
        require_int("num_elites", self.num_elites)
        require(self.num_elites <= n, "num_elites", self.num_elites, f"must be from 1 to population_size, {n}")

    def init(self, key: Key, mean: Params) -> VanillaESState:
        return VanillaESState(mean, self.noise.init(key))

    def ask(self, key: Key, state: VanillaESState) -> tuple[Params, VanillaESState]:
        """Sample individuals around the mean, as parameters, leaves [n, ...]."""
        return self.noise.sample_members(state.mean, self.std, state.table, key, self.population_size), state

    def tell(
        self,
        key: Key,
        genomes: Params,
        fitness: Float[Array, " n"],
        state: VanillaESState,
    ) -> tuple[VanillaESState, Metrics]:
        del key
        elites = argsort_best_first(fitness)[: self.num_elites]
        mean = sum_over_rows(genomes, elites, recombination_weights(self.num_elites, 0.5), sum_weighted)
        return replace(state, mean=unflatten_member(mean, state.mean)), {}

    def solution(self, state: VanillaESState) -> Params:
        return state.mean
