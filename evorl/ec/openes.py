"""OpenAI's evolution strategy (OpenES)."""

from dataclasses import KW_ONLY, field, replace
from typing import Any

import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float

from evorl.ec.flatten import flatten_member, sum_weighted, unflatten_member
from evorl.ec.noise import Noise
from evorl.ec.shaping import Shaping, apply_shaping, check_shaping
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.types import Evolver, Key, Metrics, Params


@struct.dataclass
class OpenESState:
    mean: Params
    moments: optax.ScaleByAdamState  # of the flattened mean
    table: Float[Array, " table_size"] | None  # noise table, if the noise uses one


def init_openes_state(mean: Params, noise: Noise, key: Key) -> OpenESState:
    """Return the initial state of a search around `mean`."""
    moments: Any = optax.scale_by_adam().init(flatten_member(mean))
    return OpenESState(mean, moments, noise.init(key))


def check_pairs(n: int) -> None:
    """Raise OptionError unless the population size is even and at least 2, as mirrored pairs need."""
    require_int("population_size", n, 2)
    require(n % 2 == 0, "population_size", n, "must be even: members come in mirrored pairs")


@part
class AdamES:
    """Base class of evolution strategies that follow an estimate of the fitness gradient with Adam.

    The defaults are from table 3b of EvoRL (arXiv:2501.15129).
    """

    _: KW_ONLY
    learning_rate: Number = number(0.01, 0, about="learning rate of Adam", prior=LogUniform(1e-3, 1e-1))
    std: Number = number(
        0.02, 0, about="standard deviation of the noise on every parameter", prior=LogUniform(5e-3, 0.5)
    )
    weight_decay: Number = number(
        0.005, 0, about="weight decay of the mean, relative to std times the fitness gradient"
    )

    def apply_gradient(self, state: OpenESState, gradient: Float[Array, " size"]) -> tuple[OpenESState, Metrics]:
        """Return the state after one Adam step along the fitness gradient [size] minus weight decay."""
        mean = flatten_member(state.mean)
        ascent = gradient - self.weight_decay / self.std * mean
        direction, moments = optax.scale_by_adam().update(ascent, state.moments)
        moved = unflatten_member(mean + self.learning_rate * jnp.asarray(direction), state.mean)
        return replace(state, mean=moved, moments=moments), {"gradient_norm": jnp.linalg.norm(gradient)}


@part
class OpenES(AdamES, Evolver):
    """OpenAI's evolution strategy: Adam on the gradient of the mean fitness of a normal distribution.

    Individuals come in mirrored pairs mean + noise and mean - noise. Weight decay is applied as in the
    paper's code, whose gradients lack the factor 1 / std.

    Args:
        population_size: Number of individuals per generation, even.
        shaping: Fitness shaping: "centered_rank", "z_score", "weights" (the utilities of NES), "identity", or
            a function from fitness [n] to utilities [n].
        noise: Source of the random numbers.

    Source: Salimans et al. 2017, arXiv:1703.03864, algorithm 1.
    """

    population_size: int = 128
    shaping: str | Shaping = "centered_rank"
    noise: Noise = field(default_factory=Noise)

    def __post_init__(self) -> None:
        check_pairs(self.population_size)
        check_shaping(self.shaping)

    def init(self, key: Key, mean: Params) -> OpenESState:
        return init_openes_state(mean, self.noise, key)

    def ask(self, key: Key, state: OpenESState) -> tuple[Params, OpenESState]:
        """Sample mirrored pairs of individuals around the mean, as parameters, leaves [n, ...]."""
        n = self.population_size
        return self.noise.sample_members(state.mean, self.std, state.table, key, n, mirrored=True), state

    def estimate_gradient(
        self, state: OpenESState, genomes: Params, fitness: Float[Array, " n"]
    ) -> Float[Array, " size"]:
        """Return the estimate 1 / (n std^2) sum_i utility_i (x_i - mean) of the fitness gradient.

        Args:
            state: State of the search.
            genomes: Individuals as parameters, leaves [n, ...].
            fitness: Fitness of the individuals, shape [n].

        Returns:
            The gradient with respect to the flattened mean, shape [size].
        """
        utility = apply_shaping(self.shaping, fitness)
        total = sum_weighted(utility, genomes) - utility.sum() * flatten_member(state.mean)
        return total / (len(fitness) * self.std**2)

    def tell(
        self,
        key: Key,
        genomes: Params,
        fitness: Float[Array, " n"],
        state: OpenESState,
    ) -> tuple[OpenESState, Metrics]:
        del key
        return self.apply_gradient(state, self.estimate_gradient(state, genomes, fitness))

    def solution(self, state: OpenESState) -> Params:
        return state.mean
