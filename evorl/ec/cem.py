"""The diagonal cross-entropy method."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from evorl import tree
from evorl.errors import require
from evorl.hyperparameters import Number, hyperparameter
from evorl.types import Key, Metrics, Params


@struct.dataclass
class CEMHyperparams:
    """Defaults: Pourchot & Sigaud 2019, whose code takes for variances what table 4b of EvoRL calls std."""

    initial_variance: Number = hyperparameter(1e-3, 0, about="of every parameter, and of the first noise")
    final_noise: Number = hyperparameter(1e-5, 0, about="what the noise added to the variance decays to")
    noise_decay: Number = hyperparameter(0.95, 0, 1, "the noise's memory: noise <- decay noise + (1 - decay) final")


@struct.dataclass
class CEMState:
    mean: Any
    variance: Any  # [parameters], of the mean raveled
    noise: Any  # []


def rank_weights(num_elites: int) -> Float[Array, " elites"]:
    """log(1 + n) - log(i) for the i-th best of n elites, i from 1, normalized to sum to 1."""
    weights = jnp.log(1.0 + num_elites) - jnp.log(jnp.arange(1.0, 1 + num_elites))
    return weights / weights.sum()


def best_first(fitness: Float[Array, " n"]) -> Array:
    """Members from the fittest to the least fit; NaN is the worst."""
    return jnp.argsort(-jnp.where(jnp.isnan(fitness), -jnp.inf, fitness))


@dataclass(frozen=True)
class CEM:
    """A normal distribution with diagonal covariance, moved to its elites (Pourchot & Sigaud 2019, arXiv:1810.01222).

    num_elites 0 takes half of the population; mirrored draws members in pairs mean +- deviation. shrink divides the
    elites' variance by their number, as the code of the paper does though its equation 2 does not. Without it the noise
    adds up, to 20 times what was first added, wherever fitness says little about a parameter.
    """

    population_size: int = 10
    num_elites: int = 0
    mirrored: bool = False
    shrink: bool = True

    def __post_init__(self) -> None:
        n = self.population_size
        require(n >= 2, "population_size", n, "must be at least 2")
        require(0 <= self.num_elites <= n, "num_elites", self.num_elites, f"must be between 1 and {n}, or 0 for half")
        require(not self.mirrored or n % 2 == 0, "population_size", n, "must be even where mirrored")

    @property
    def elites(self) -> int:
        return self.num_elites or self.population_size // 2

    def init(self, key: Key, mean: Params, hyperparams: CEMHyperparams) -> CEMState:
        del key
        variance = jnp.full_like(ravel_pytree(mean)[0], hyperparams.initial_variance)
        return CEMState(mean, variance, jnp.float32(hyperparams.initial_variance))

    def ask(self, key: Key, state: CEMState, hyperparams: CEMHyperparams) -> tuple[Params, CEMState]:
        """Members as parameters, leaves [n, ...]."""
        del hyperparams
        mean, unravel = ravel_pytree(state.mean)
        n = self.population_size // 2 if self.mirrored else self.population_size
        deviation = jnp.sqrt(state.variance) * jax.random.normal(key, (n, mean.size), mean.dtype)
        members = mean + (jnp.concatenate([deviation, -deviation]) if self.mirrored else deviation)
        return jax.vmap(unravel)(members), state

    def express(self, state: CEMState, genome: Params, hyperparams: CEMHyperparams) -> Params:
        del state, hyperparams
        return genome

    def tell(
        self,
        key: Key,
        genomes: Params,
        fitness: Float[Array, " n"],
        state: CEMState,
        hyperparams: CEMHyperparams,
    ) -> tuple[CEMState, Metrics]:
        """The mean moves to the weighted elites; the variance is theirs around the old mean, plus the noise."""
        del key
        elites = tree.index(genomes, best_first(fitness)[: self.elites])
        elites = jax.vmap(lambda elite: ravel_pytree(elite)[0])(elites)
        old, unravel = ravel_pytree(state.mean)
        weights = rank_weights(self.elites)
        noise = hyperparams.noise_decay * state.noise + (1 - hyperparams.noise_decay) * hyperparams.final_noise
        scale = 1 / self.elites if self.shrink else 1.0
        variance = scale * weights @ (elites - old) ** 2 + noise
        return CEMState(unravel(weights @ elites), variance, noise), {"variance": variance.mean()}

    def center(self, state: CEMState) -> Params:
        return state.mean
