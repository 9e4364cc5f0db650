"""Diagonal cross-entropy method (CEM)."""

from dataclasses import field, replace

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.ec.flatten import flatten_member, sum_over_rows, sum_weighted, unflatten_member
from evorl.ec.noise import Noise
from evorl.ec.shaping import argsort_best_first, recombination_weights
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.types import Evolver, Key, Metrics, Params


@struct.dataclass
class CEMState:
    mean: Params
    variance: Float[Array, " parameters"]  # of the flattened mean
    noise: Float[Array, ""]
    table: Float[Array, " table_size"] | None  # noise table, if the noise uses one


@part
class CEM(Evolver):
    """Diagonal cross-entropy method (CEM): a normal distribution that is refitted to the elites of each generation.

    The variance also receives additive noise that decays over the generations. The defaults are from the
    paper's code, which uses as variances the values that table 4b of EvoRL lists as standard deviations.

    Args:
        population_size: Number of individuals per generation.
        num_elites: Number of elites; 0 means half of the population.
        mirrored: Whether to sample mirrored pairs mean + deviation and mean - deviation. In this case
            population_size must be even.
        shrink: Whether to divide the variance of the elites by their number, as the paper's code does;
            equation 2 of the paper does not. Without it, the noise accumulates to 20 times its first value in
            every parameter that has little effect on fitness.
        noise: Source of the random numbers.

    Source: Pourchot & Sigaud 2019, arXiv:1810.01222.
    """

    population_size: int = 10
    num_elites: int = 0
    mirrored: bool = False
    shrink: bool = True
    noise: Noise = field(default_factory=Noise)
    initial_variance: Number = number(
        1e-3, 0, about="initial variance of every parameter, and initial value of the noise that is added to it"
    )
    final_noise: Number = number(1e-5, 0, about="value to which the noise that is added to the variance decays")
    noise_decay: Number = number(
        0.95, 0, 1, "decay factor per generation: noise <- noise_decay * noise + (1 - noise_decay) * final_noise"
    )

    def __post_init__(self) -> None:
        n = self.population_size
        require_int("population_size", n, 2)
        require_int("num_elites", self.num_elites, 0)
        require(self.num_elites <= n, "num_elites", self.num_elites, f"must be between 1 and {n}, or 0 for half")
        require(not self.mirrored or n % 2 == 0, "population_size", n, "must be even with mirrored=true")

    @property
    def num_parents(self) -> int:
        """Return the number of elites."""
        return self.num_elites or self.population_size // 2

    def init(self, key: Key, mean: Params) -> CEMState:
        variance = jnp.full_like(flatten_member(mean), self.initial_variance)
        return CEMState(mean, variance, jnp.float32(self.initial_variance), self.noise.init(key))

    def ask(self, key: Key, state: CEMState) -> tuple[Params, CEMState]:
        """Sample individuals from the distribution, as parameters, leaves [n, ...]."""
        n, std = self.population_size, jnp.sqrt(state.variance)
        return self.noise.sample_members(state.mean, std, state.table, key, n, self.mirrored), state

    def tell(
        self,
        key: Key,
        genomes: Params,
        fitness: Float[Array, " n"],
        state: CEMState,
    ) -> tuple[CEMState, Metrics]:
        """Set the mean to the weighted mean of the elites, and the variance to their variance plus the noise.

        The variance of the elites is computed around the old mean.
        """
        del key
        center = flatten_member(state.mean)

        def compute_moments(weights: Float[Array, " k"], elites: Float[Array, "k size"]) -> tuple[Array, Array]:
            return sum_weighted(weights, elites), sum_weighted(weights, (elites - center) ** 2)

        elites = argsort_best_first(fitness)[: self.num_parents]
        weights = recombination_weights(self.num_parents, 1.0)
        first, second = sum_over_rows(genomes, elites, weights, compute_moments)
        noise = self.noise_decay * state.noise + (1 - self.noise_decay) * self.final_noise
        scale = 1 / self.num_parents if self.shrink else 1.0
        variance = scale * second + noise
        mean = unflatten_member(first, state.mean)
        return replace(state, mean=mean, variance=variance, noise=noise), {"variance": variance.mean()}

    def solution(self, state: CEMState) -> Params:
        return state.mean
