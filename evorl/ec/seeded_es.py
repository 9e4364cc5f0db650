"""OpenAI's evolution strategy with a population that is stored as seeds."""

from collections.abc import Callable
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.ec.flatten import flatten_member, unflatten_member
from evorl.ec.noise import Seeds
from evorl.ec.openes import OpenES, OpenESState
from evorl.ec.seeds import create_zero_seed, sum_seed_noise
from evorl.ec.shaping import apply_shaping
from evorl.parts import part
from evorl.types import Key, Metrics, Params, SeedEvolver


@part
class SeededES(SeedEvolver):
    """OpenES whose population is stored as seeds instead of parameters.

    A block of individuals is generated from its seeds just before its evaluation, and its noise a second time
    in `tell`. The search is identical to OpenES with the same hyperparameters.

    Args:
        search: The OpenES with the hyperparameters of the search.

    Source: Salimans et al. 2017, arXiv:1703.03864, algorithm 2.
    """

    search: OpenES = field(default_factory=OpenES)

    @property
    def population_size(self) -> int:
        """Return the number of individuals per generation."""
        return self.search.population_size

    def init(self, key: Key, mean: Params) -> OpenESState:
        return self.search.init(key, mean)

    def ask(self, key: Key, state: OpenESState) -> tuple[Seeds, OpenESState]:
        """Return the individuals as seeds, leaves [n, ...]."""
        return self.search.noise.sample_seeds(key, self.population_size, flatten_member(state.mean).size), state

    def center_genome(self, state: OpenESState) -> Seeds:
        """Return a seed without noise, which stands for the mean."""
        del state
        return create_zero_seed()

    def materialize(self, state: OpenESState, genomes: Seeds) -> Params:
        """Return the parameters of individuals, leaves [m, ...]."""
        size, made = flatten_member(state.mean).size, self.make_member_builder(state)
        return self.search.noise.materialize(genomes, state.table, size, made)

    def to_params(self, state: OpenESState, genome: Any) -> Params:
        """Return the parameters of one seed; parameters from `materialize` are returned unchanged."""
        if not isinstance(genome, Seeds):
            return genome
        noise = self.search.noise.generate_row(genome, state.table, flatten_member(state.mean).size)
        return self.make_member_builder(state)(noise, genome.sign)

    def tell(
        self, key: Key, genomes: Seeds, fitness: Float[Array, " n"], state: OpenESState
    ) -> tuple[OpenESState, Metrics]:
        del key
        utility, size = apply_shaping(self.search.shaping, fitness), flatten_member(state.mean).size
        highest = jax.lax.Precision.HIGHEST
        weighted = lambda weights, rows: jnp.matmul(weights, rows, precision=highest)  # noqa: E731
        total = sum_seed_noise(self.search.noise, genomes, utility, state.table, size, weighted)
        return self.search.apply_gradient(state, total / (len(fitness) * self.search.std))

    def make_member_builder(self, state: OpenESState) -> Callable[[Array, Array], Params]:
        """Return a function from the noise [size] and the sign of an individual to its parameters.

        Args:
            state: State of the search, with the mean.
        """
        return lambda noise, sign: unflatten_member(
            flatten_member(state.mean) + self.search.std * sign * noise, state.mean
        )

    def solution(self, state: OpenESState) -> Params:
        return state.mean
