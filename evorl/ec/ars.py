"""Augmented random search."""

from dataclasses import field, replace

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl import tree
from evorl.ec.flatten import flatten_member, flatten_population, sum_weighted, unflatten_member
from evorl.ec.noise import Noise
from evorl.ec.shaping import argsort_best_first, replace_nonfinite
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.types import Evolver, Key, Metrics, Params


@struct.dataclass
class ARSState:
    mean: Params
    table: Float[Array, " table_size"] | None  # of noise, where it comes from one


@part
class ARS(Evolver):
    """Steps along the best random directions, by the differences of their two returns in units of the returns' std.

    Source: Mania et al. 2018, arXiv:1803.07055, algorithm 2. A direction is as good as the better of its two
    members. Version 2 of the paper normalizes observations, which is the workflow's normalization=running.
    Defaults: table 3a of EvoRL (arXiv:2501.15129).
    """

    population_size: int = 128
    num_elites: int = 16  # directions
    noise: Noise = field(default_factory=Noise)
    learning_rate: Number = number(
        0.02, 0, about="of the step along the elite directions", prior=LogUniform(1e-3, 1e-1)
    )
    std: Number = number(0.03, 0, about="of the noise on every parameter", prior=LogUniform(5e-3, 0.5))

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
        """Members as parameters, leaves [n, ...]."""
        n = self.population_size
        return self.noise.sample_members(state.mean, self.std, state.table, key, n, mirrored=True), state

    def tell(self, key: Key, genomes: Params, fitness: Float[Array, " n"], state: ARSState) -> tuple[ARSState, Metrics]:
        """learning_rate / (b std of the 2 b returns) sum_i (r_i+ - r_i-) direction_i over the b best directions."""
        del key
        plus, minus = jnp.split(replace_nonfinite(fitness), 2)
        elites = argsort_best_first(jnp.maximum(plus, minus))[: self.num_elites]
        above, below = (
            flatten_population(tree.index(genomes, i)) for i in (elites, elites + self.population_size // 2)
        )
        directions = (above - below) / (2 * self.std)
        plus, minus = plus[elites], minus[elites]
        spread = jnp.concatenate([plus, minus]).std()
        step = sum_weighted(plus - minus, directions) / (self.num_elites * jnp.maximum(spread, 1e-8))
        mean = flatten_member(state.mean) + self.learning_rate * step
        return replace(state, mean=unflatten_member(mean, state.mean)), {"return_std": spread}

    def solution(self, state: ARSState) -> Params:
        return state.mean
