"""Augmented random search (ARS)."""

from dataclasses import field, replace

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.ec.flatten import flatten_member, sum_over_rows, sum_weighted, unflatten_member
from evorl.ec.noise import Noise
from evorl.ec.shaping import argsort_best_first, replace_nonfinite
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.types import Evolver, Key, Metrics, Params


@struct.dataclass
class ARSState:
    mean: Params
    table: Float[Array, " table_size"] | None  # noise table, if the noise uses one


@part
class ARS(Evolver):
    """Augmented random search (ARS).

    The mean moves along the best of the random directions. Each direction is evaluated by two mirrored
    individuals and weighted by the difference of their returns, divided by the standard deviation of the
    returns. The fitness of a direction is the higher one of its two returns. Version 2 of the paper also
    normalizes observations: set normalization=running in the workflow. The defaults are from table 3a of
    EvoRL (arXiv:2501.15129).

    Args:
        population_size: Number of individuals per generation, even; two for each direction.
        num_elites: Number of directions that are used for the step, at most population_size / 2.
        noise: Source of the random numbers.

    Source: Mania et al. 2018, arXiv:1803.07055, algorithm 2.
    """

    population_size: int = 128
    num_elites: int = 16
    noise: Noise = field(default_factory=Noise)
    learning_rate: Number = number(
        0.02, 0, about="step size along the weighted elite directions", prior=LogUniform(1e-3, 1e-1)
    )
    std: Number = number(
        0.03, 0, about="standard deviation of the noise on every parameter", prior=LogUniform(5e-3, 0.5)
    )

    def __post_init__(self) -> None:
        n = self.population_size
        require_int("population_size", n, 2)
        require(n % 2 == 0, "population_size", n, "must be even: members come in mirrored pairs")
        require_int("num_elites", self.num_elites)
        pairs = f"must be from 1 to the number of mirrored pairs, {n // 2}"
        require(1 <= self.num_elites <= n // 2, "num_elites", self.num_elites, pairs)

    def init(self, key: Key, mean: Params) -> ARSState:
        return ARSState(mean, self.noise.init(key))

    def ask(self, key: Key, state: ARSState) -> tuple[Params, ARSState]:
        """Sample mirrored pairs of individuals around the mean, as parameters, leaves [n, ...]."""
        n = self.population_size
        return self.noise.sample_members(state.mean, self.std, state.table, key, n, mirrored=True), state

    def tell(self, key: Key, genomes: Params, fitness: Float[Array, " n"], state: ARSState) -> tuple[ARSState, Metrics]:
        """Move the mean by learning_rate / (b * std) * sum_i (r_i+ - r_i-) * direction_i.

        The sum is over the b best directions, and std is the standard deviation of their 2 b returns.
        """
        del key
        pairs = replace_nonfinite(fitness).reshape(-1, 2)
        elites = argsort_best_first(pairs.max(1))[: self.num_elites]
        returns = pairs[elites]
        differences = returns[:, 0] - returns[:, 1]

        def sum_directions(weights: Float[Array, " k"], rows: Float[Array, "k size"]) -> Float[Array, " size"]:
            weights = jnp.where(weights[::2] == 0, weights[1::2], weights[::2])  # a device may have half of a pair
            return sum_weighted(weights, (rows[::2] - rows[1::2]) / (2 * self.std))

        both = 2 * jnp.repeat(elites, 2) + jnp.arange(2 * self.num_elites) % 2
        total = sum_over_rows(genomes, both, jnp.repeat(differences, 2), sum_directions, group=2)
        spread = returns.std()
        step = total / (self.num_elites * jnp.maximum(spread, 1e-8))
        mean = flatten_member(state.mean) + self.learning_rate * step
        return replace(state, mean=unflatten_member(mean, state.mean)), {"return_std": spread}

    def solution(self, state: ARSState) -> Params:
        return state.mean
