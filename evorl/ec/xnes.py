"""Exponential natural evolution strategy."""

import jax.numpy as jnp
from flax import struct
from jax.scipy.linalg import expm
from jaxtyping import Array, Float

from evorl import tree
from evorl.ec.covariance import EXACT
from evorl.ec.flatten import flatten_member, flatten_population, unflatten_member, unflatten_population
from evorl.ec.noise import normal
from evorl.ec.shaping import nes_utilities
from evorl.errors import require_int
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.types import Evolver, Key, Metrics, Params

MAX_EXPONENT = 3.0  # of the factor's change, which individuals that `ask` did not sample could make infinite


@struct.dataclass
class XNESState:
    mean: Params
    factor: Float[Array, "n n"]  # A, where A A^T is the covariance of the flattened mean


@part
class XNES(Evolver):
    """Exponential natural evolution strategy (xNES).

    The mean and the covariance of a normal distribution follow the natural gradient of the expected utility
    of its individuals, which depends on their ranks alone. The covariance changes by a matrix exponential, so
    that it stays positive definite. All individuals with the same fitness change nothing.

    A generation of n individuals with d parameters costs O(n d^2 + d^3): it is for small policies and
    functions of up to a few hundred parameters.

    `tell` accepts individuals that `ask` did not sample. For this reason, one update changes the standard
    deviation in any direction by at most a factor of e^3, which its own individuals do not reach.

    Args:
        population_size: Number of individuals per generation; 4 + 3 log d in the paper.

    Source: Glasmachers et al. 2010, doi:10.1145/1830483.1830557; Wierstra et al. 2014, JMLR 15, algorithm 5
    and table 1.
    """

    population_size: int = 128
    initial_std: Number = number(0.1, 0, about="initial standard deviation of every parameter")
    mean_rate: Number = number(1.0, 0, about="eta_mu, learning rate of the mean", prior=LogUniform(0.3, 3))
    step_rate: Number = number(
        1.0, 0, about="factor on eta_sigma, learning rate of the step size", prior=LogUniform(0.3, 3)
    )
    shape_rate: Number = number(
        1.0, 0, about="factor on eta_B, learning rate of the shape of the distribution", prior=LogUniform(0.3, 3)
    )

    def __post_init__(self) -> None:
        require_int("population_size", self.population_size, 2)

    def init(self, key: Key, mean: Params) -> XNESState:
        del key
        return tree.drop_weak_types(XNESState(mean, self.initial_std * jnp.eye(flatten_member(mean).size)))

    def ask(self, key: Key, state: XNESState) -> tuple[Params, XNESState]:
        """Sample individuals from the distribution, as parameters, leaves [population_size, ...]."""
        mean = flatten_member(state.mean)
        noise = normal(key, (self.population_size, mean.size))
        return unflatten_population(mean + jnp.matmul(noise, state.factor.T, precision=EXACT), state.mean), state

    def tell(
        self, key: Key, genomes: Params, fitness: Float[Array, " n"], state: XNESState
    ) -> tuple[XNESState, Metrics]:
        del key
        mean, population = flatten_member(state.mean), flatten_population(genomes)
        n, d = population.shape
        noise = jnp.linalg.solve(state.factor, (population - mean).T).T
        noise = jnp.where(jnp.isfinite(noise), noise, 0.0)
        utilities = nes_utilities(fitness) / n  # their sum is 0
        gradient = jnp.matmul(noise.T * utilities, noise, precision=EXACT)  # of A; G_M in the paper
        scale = gradient.trace() / d * jnp.eye(d)
        rate = (9 + 3 * jnp.log(d)) / (5 * d**1.5)
        exponent = rate / 2 * (self.step_rate * scale + self.shape_rate * (gradient - scale))
        exponent /= jnp.maximum(jnp.linalg.norm(exponent) / MAX_EXPONENT, 1.0)
        step = jnp.matmul(state.factor, utilities @ noise, precision=EXACT)
        factor = jnp.matmul(state.factor, expm(exponent), precision=EXACT)
        moved = XNESState(unflatten_member(mean + self.mean_rate * step, state.mean), factor)
        return moved, {"variance": (factor**2).sum() / d}

    def solution(self, state: XNESState) -> Params:
        return state.mean
