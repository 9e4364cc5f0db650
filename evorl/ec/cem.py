"""The diagonal cross-entropy method."""

from dataclasses import field, replace

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl import tree
from evorl.ec.flatten import flatten_member, flatten_population, sum_weighted, unflatten_member
from evorl.ec.noise import Noise
from evorl.ec.shaping import argsort_best_first, recombination_weights
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.types import Evolver, Key, Metrics, Params


@struct.dataclass
class CEMState:
    mean: Params
    variance: Float[Array, " parameters"]  # of the mean raveled
    noise: Float[Array, ""]
    table: Float[Array, " table_size"] | None  # of noise, where it comes from one


@part
class CEM(Evolver):
    """A normal distribution with diagonal covariance, moved to its elites (Pourchot & Sigaud 2019, arXiv:1810.01222).

    num_elites 0 takes half of the population; mirrored draws members in pairs mean +- deviation. shrink divides the
    elites' variance by their number, as the code of the paper does though its equation 2 does not. Without it the
    noise adds up, to 20 times what was first added, wherever fitness says little about a parameter. Defaults:
    Pourchot & Sigaud 2019, whose code takes for variances what table 4b of EvoRL calls std.
    """

    population_size: int = 10
    num_elites: int = 0
    mirrored: bool = False
    shrink: bool = True
    noise: Noise = field(default_factory=Noise)
    initial_variance: Number = number(1e-3, 0, about="of every parameter, and of the first noise")
    final_noise: Number = number(1e-5, 0, about="what the noise added to the variance decays to")
    noise_decay: Number = number(0.95, 0, 1, "the noise's memory: noise <- decay noise + (1 - decay) final")

    def __post_init__(self) -> None:
        n = self.population_size
        require_int("population_size", n, 2)
        require_int("num_elites", self.num_elites, 0)
        require(self.num_elites <= n, "num_elites", self.num_elites, f"must be between 1 and {n}, or 0 for half")
        require(not self.mirrored or n % 2 == 0, "population_size", n, "must be even where mirrored")

    @property
    def num_parents(self) -> int:
        """How many of the fittest count."""
        return self.num_elites or self.population_size // 2

    def init(self, key: Key, mean: Params) -> CEMState:
        variance = jnp.full_like(flatten_member(mean), self.initial_variance)
        return CEMState(mean, variance, jnp.float32(self.initial_variance), self.noise.init(key))

    def ask(self, key: Key, state: CEMState) -> tuple[Params, CEMState]:
        """Members as parameters, leaves [n, ...]."""
        n, std = self.population_size, jnp.sqrt(state.variance)
        return self.noise.sample_members(state.mean, std, state.table, key, n, self.mirrored), state

    def tell(
        self,
        key: Key,
        genomes: Params,
        fitness: Float[Array, " n"],
        state: CEMState,
    ) -> tuple[CEMState, Metrics]:
        """The mean moves to the weighted elites; the variance is theirs around the old mean, plus the noise."""
        del key
        elites = flatten_population(tree.index(genomes, argsort_best_first(fitness)[: self.num_parents]))
        weights = recombination_weights(self.num_parents, 1.0)
        noise = self.noise_decay * state.noise + (1 - self.noise_decay) * self.final_noise
        scale = 1 / self.num_parents if self.shrink else 1.0
        variance = scale * sum_weighted(weights, (elites - flatten_member(state.mean)) ** 2) + noise
        mean = unflatten_member(sum_weighted(weights, elites), state.mean)
        return replace(state, mean=mean, variance=variance, noise=noise), {"variance": variance.mean()}

    def solution(self, state: CEMState) -> Params:
        return state.mean
