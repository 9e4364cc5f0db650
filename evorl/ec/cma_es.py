"""CMA-ES with active (negative) recombination weights."""

from dataclasses import field, replace

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl import tree
from evorl.ec.covariance import Covariance, FullCovariance
from evorl.ec.flatten import (
    flatten_member,
    flatten_population,
    sum_weighted,
    unflatten_member,
    unflatten_population,
)
from evorl.ec.noise import normal
from evorl.ec.shaping import argsort_best_first
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.types import Evolver, Key, Metrics, Params

PLATEAU_GROWTH = 1.5  # factor on sigma if all individuals have the same fitness
MAX_GROWTH = 1e10  # of sigma on a plateau, in units of initial_std
MIN_STD = 0.01  # below this standard deviation, in units of sigma, sigma is rescaled


@struct.dataclass
class CMAESState:
    mean: Params
    sigma: Float[Array, ""]
    covariance: Float[Array, "n n"] | Float[Array, " n"]  # of the flattened mean; [n] if diagonal
    factor: Float[Array, "n n"] | Float[Array, " n"]  # of this covariance or a slightly older one
    path_sigma: Float[Array, " n"]
    path_covariance: Float[Array, " n"]
    generation: Int[Array, ""]


@struct.dataclass
class Rates:
    """Constants of CMA-ES for one population size (Hansen 2016, table 1)."""

    weights: Float[Array, " slots"]  # sorted from the best individual; 0 beyond the population
    mu_eff: Float[Array, ""]
    c_sigma: Float[Array, ""]
    d_sigma: Float[Array, ""]
    c_covariance: Float[Array, ""]  # c_c, the rate of the evolution path
    c_1: Float[Array, ""]
    c_mu: Float[Array, ""]


def compute_mu_eff(weights: Float[Array, " n"]) -> Float[Array, ""]:
    """Return the variance-effective selection mass (sum w)^2 / sum w^2; 0 if all weights are 0."""
    return weights.sum() ** 2 / jnp.maximum((weights**2).sum(), 1e-30)


def compute_raw_weights(slots: int, size: Number, elites: Number) -> Float[Array, " slots"]:
    """Return the raw weights log(elites + 1/2) - log(i) of the i-th best member, i from 1 to `size` (equation 49).

    The weights of the `elites` best are positive. Entries beyond `size` are 0. size and elites may be traced.
    """
    rank = jnp.arange(1.0, slots + 1)
    return jnp.where(rank <= size, jnp.log(elites + 0.5) - jnp.log(rank), 0.0)


def compute_rates(
    n: int, raw: Float[Array, " slots"], active: bool, scale: float, alpha: Number, damping: Number
) -> Rates:
    """Return the constants for a population with the given raw weights (equations 50 to 58).

    Args:
        n: Number of parameters.
        raw: Raw weights, the best individual first, shape `[slots]`.
        active: Whether to use the negative weights.
        scale: Factor on c_1 and c_mu.
        alpha: alpha_cov, another factor on c_1 and c_mu.
        damping: Factor on d_sigma.
    """
    positive, negative = jnp.maximum(raw, 0.0), jnp.minimum(raw, 0.0)
    mu_eff, mu_eff_minus = compute_mu_eff(positive), compute_mu_eff(negative)
    c_1 = scale * alpha / ((n + 1.3) ** 2 + mu_eff)
    c_mu = scale * alpha * (0.25 + mu_eff + 1 / mu_eff - 2) / ((n + 2.0) ** 2 + alpha * mu_eff / 2)
    c_mu = jnp.minimum(1 - c_1, c_mu)
    alpha_mu, alpha_mu_eff = 1 + c_1 / c_mu, 1 + 2 * mu_eff_minus / (mu_eff + 2)
    alpha_definite = (1 - c_1 - c_mu) / (n * c_mu)
    alpha_minus = active * jnp.minimum(jnp.minimum(alpha_mu, alpha_mu_eff), alpha_definite)
    weights = positive / positive.sum() + alpha_minus * negative / jnp.maximum(-negative.sum(), 1e-30)
    c_sigma = (mu_eff + 2) / (n + mu_eff + 5)
    d_sigma = 1 + 2 * jnp.maximum(0.0, jnp.sqrt((mu_eff - 1) / (n + 1)) - 1) + c_sigma
    c_covariance = (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n)
    return Rates(weights, mu_eff, c_sigma, damping * d_sigma, c_covariance, c_1, c_mu)


def update_evolution_path(path: Array, rate: Array, mu_eff: Array, step: Array) -> Array:
    """Return the evolution path after one step.

    Under random selection, the expected length of the path does not change.
    """
    return (1 - rate) * path + jnp.sqrt(rate * (2 - rate) * mu_eff) * step


@part
class CMAES(Evolver):
    """Covariance matrix adaptation evolution strategy (CMA-ES).

    The mean, the step size sigma and the covariance of a normal distribution adapt to the fittest
    individuals. The defaults are from table 1 of the paper; the initial standard deviation is from
    EvoRL.

    Three details differ from the basic algorithm:

    - `tell` accepts individuals that `ask` did not sample. For this reason, one update multiplies sigma by at
      most e (Hansen 2011, arXiv:1110.4181);
    - if all individuals have the same fitness, their order carries no information, and sigma grows by half,
      as with pycma's manage_plateaus(1.5, 1);
    - sigma is rescaled if the covariance becomes tiny, so that no value underflows in float32.

    Args:
        population_size: Number of individuals per generation.
        num_elites: Number of individuals with positive weights; 0 means half of the population.
        active: Whether the remaining individuals have negative weights in the covariance update.
        covariance: FullCovariance(), or DiagonalCovariance() for separable CMA-ES.

    Source: Hansen 2016, arXiv:1604.00772.
    """

    population_size: int = 128
    num_elites: int = 0
    active: bool = True
    covariance: Covariance = field(default_factory=FullCovariance)
    initial_std: Number = number(0.1, 0, about="initial sigma, the standard deviation of every parameter")
    mean_rate: Number = number(1.0, 0, 1, "c_m, learning rate of the mean")
    covariance_rate: Number = number(2.0, 1e-3, 2, "alpha_cov, factor on the learning rates of the covariance")
    step_damping: Number = number(
        1.0, 0.1, about="factor on d_sigma; larger values slow the changes of sigma", prior=LogUniform(0.3, 3)
    )

    def __post_init__(self) -> None:
        n = self.population_size
        require_int("population_size", n, 2)
        require_int("num_elites", self.num_elites, 0)
        require(self.num_elites <= n, "num_elites", self.num_elites, f"must be between 1 and {n}, or 0 for half")

    @property
    def num_parents(self) -> int:
        """Return the number of individuals whose weighted mean becomes the new mean."""
        return self.num_elites or self.population_size // 2

    def init(self, key: Key, mean: Params) -> CMAESState:
        del key
        return self.init_isotropic(mean, self.initial_std)

    def init_isotropic(self, mean: Params, sigma: Number) -> CMAESState:
        """Return the state of a search that begins with an isotropic normal distribution.

        Args:
            mean: Mean of the distribution, as parameters.
            sigma: Standard deviation of every parameter.
        """
        n = flatten_member(mean).size
        identity, path = self.covariance.identity(n), jnp.zeros(n)
        return tree.drop_weak_types(CMAESState(mean, jnp.float32(sigma), identity, identity, path, path, jnp.int32(0)))

    def ask(self, key: Key, state: CMAESState) -> tuple[Params, CMAESState]:
        """Sample individuals from the distribution, as parameters, leaves [population_size, ...]."""
        mean = flatten_member(state.mean)
        noise = normal(key, (self.population_size, mean.size))
        return unflatten_population(
            mean + state.sigma * self.covariance.transform_noise(state.factor, noise), state.mean
        ), state

    def tell(
        self, key: Key, genomes: Params, fitness: Float[Array, " n"], state: CMAESState
    ) -> tuple[CMAESState, Metrics]:
        del key
        state = self.update(flatten_population(genomes), fitness, self.population_size, state)
        flat = (fitness == fitness[0]).all() & jnp.isfinite(fitness[0])
        grows = flat & (state.sigma < MAX_GROWTH * self.initial_std)
        state = replace(state, sigma=state.sigma * jnp.where(grows, PLATEAU_GROWTH, 1.0))
        variance = self.covariance.variances(state.covariance).mean() * state.sigma**2
        return state, {"variance": variance, "sigma": state.sigma}

    def solution(self, state: CMAESState) -> Params:
        return state.mean

    def update(
        self,
        members: Float[Array, "slots n"],
        fitness: Float[Array, " slots"],
        size: Number,
        state: CMAESState,
        elites: Number | None = None,
    ) -> CMAESState:
        """Update the distribution with the `size` fittest of the given individuals (equations 38 to 47).

        Args:
            members: Individuals as flattened parameters, shape `[slots, n]`.
            fitness: Fitness of the individuals, shape `[slots]`.
            size: Number of individuals to use; may be traced.
            state: State of the search.
            elites: Number of individuals with positive weights; may be traced. None means the same fraction
                of `size` as num_elites is of population_size.

        Returns:
            The state after the update.
        """
        if elites is None:
            elites = size * (self.num_elites or self.population_size / 2) / self.population_size
        n = members.shape[1]
        rate = compute_rates(
            n,
            compute_raw_weights(len(members), size, elites),
            self.active,
            self.covariance.learning_speedup(n),
            self.covariance_rate,
            self.step_damping,
        )
        mean = flatten_member(state.mean)
        steps = (members[argsort_best_first(fitness)] - mean) / state.sigma
        steps = jnp.where(jnp.isfinite(steps), steps, 0.0)
        step = sum_weighted(jnp.maximum(rate.weights, 0.0), steps)
        others = steps[self.num_parents :] if self.active else steps[:0]
        whitened = self.covariance.whiten(state.factor, jnp.concatenate([step[None], others]))
        path_sigma = update_evolution_path(state.path_sigma, rate.c_sigma, rate.mu_eff, whitened[0])
        length = jnp.linalg.norm(path_sigma) / compute_expected_norm(mean.size)
        generation = state.generation + 1
        started = jnp.sqrt(-jnp.expm1(2 * generation * jnp.log1p(-rate.c_sigma)))
        moving = (length / started < 1.4 + 2 / (mean.size + 1)).astype(jnp.float32)  # h_sigma
        path = update_evolution_path(state.path_covariance, rate.c_covariance, rate.mu_eff, moving * step)
        covariance = self._update_covariance(rate, steps, whitened[1:], moving, path, state.covariance)
        due = generation % self.covariance.factorization_interval(mean.size, rate.c_1 + rate.c_mu) < 1
        moved = CMAESState(
            mean=unflatten_member(mean + self.mean_rate * state.sigma * step, state.mean),
            sigma=state.sigma * jnp.exp(jnp.minimum(rate.c_sigma / rate.d_sigma * (length - 1), 1.0)),
            covariance=covariance,
            factor=self.covariance.factorize(covariance, state.factor, due),
            path_sigma=path_sigma,
            path_covariance=path,
            generation=generation,
        )
        return self._rescale_sigma(moved)

    def _rescale_sigma(self, state: CMAESState) -> CMAESState:
        """Return the same distribution with the scale moved from the covariance to sigma if the covariance is tiny.

        If fitness differences are below the rounding error, sigma grows and the covariance shrinks by the
        same factor, until float32 can no longer represent them. All updates are independent of this scale.
        """
        std = jnp.sqrt(self.covariance.variances(state.covariance).mean())
        scale = jnp.where((std < MIN_STD) & (std > 0), std, 1.0)
        return replace(
            state,
            sigma=state.sigma * scale,
            covariance=state.covariance / scale**2,
            factor=state.factor / scale,
            path_covariance=state.path_covariance / scale,
        )

    def _update_covariance(
        self, rate: Rates, steps: Array, whitened: Array, moving: Array, path: Array, covariance: Array
    ) -> Array:
        """Return the covariance after its rank-one and rank-mu updates.

        `whitened` holds the whitened steps of the individuals that may have negative weights; their lengths
        rescale these weights.
        """
        slots, n = steps.shape
        scale = n / jnp.maximum((whitened**2).sum(1), 1e-20)
        scale = jnp.append(jnp.ones(slots - len(whitened)), scale)
        weights = rate.weights * jnp.where(rate.weights < 0, scale, 1.0)
        lost = (1 - moving) * rate.c_covariance * (2 - rate.c_covariance)
        decay = 1 + rate.c_1 * lost - rate.c_1 - rate.c_mu * rate.weights.sum()
        weights, steps = jnp.append(rate.c_mu * weights, rate.c_1), jnp.concatenate([steps, path[None]])
        return decay * covariance + self.covariance.sum_outer_products(weights, steps)


def compute_expected_norm(n: int) -> float:
    """Return the approximate expected norm of a standard normal vector in n dimensions."""
    return n**0.5 * (1 - 1 / (4 * n) + 1 / (21 * n**2))
