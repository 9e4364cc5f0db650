"""Evolution strategy with low-rank noise on matrices (EGGROLL)."""

from collections.abc import Callable
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.tree_util import tree_map_with_path
from jaxtyping import Array, Float

from evorl.ec.flatten import flatten_member, unflatten_member, unflatten_population
from evorl.ec.noise import Noise, Seeds
from evorl.ec.openes import AdamES, OpenESState, check_pairs, init_openes_state
from evorl.ec.seeds import create_zero_seed, sum_seed_noise
from evorl.ec.shaping import Shaping, apply_shaping, check_shaping
from evorl.errors import require_int, unknown_name_error
from evorl.networks.low_rank import DTYPES, LowRankKernel, QuantizedArray, cast_to_dtype
from evorl.parts import part
from evorl.types import Key, Metrics, Params, SeedEvolver

FACTORS = ("held", "drawn")


@struct.dataclass
class Factors:
    """Factors of the matrix left^T right."""

    left: Float[Array, "rank inputs"] | QuantizedArray
    right: Float[Array, "rank outputs"] | QuantizedArray


@part
class LowRankES(AdamES, SeedEvolver):
    """EGGROLL: an evolution strategy as OpenES, with low-rank noise on kernels.

    A kernel is a matrix that is named "kernel" and that the network applies as x @ kernel. An individual has
    the kernel W + s * std / sqrt(rank) * A^T B, with standard normal matrices A and B and the sign s. All
    other leaves have full-rank noise. All individuals share W and are stored as seeds.

    Args:
        population_size: Number of individuals per generation, even.
        rank: Rank of the noise, the number of rows of A and B.
        factors: "held" stores A and B during the evaluation; "drawn" generates them again in each call of the
            network, which needs no memory but more time.
        dtype: Type of the matrix products, to which A and B are rounded: "float32", "bfloat16" or "int8". The
            mean stays float32.
        shaping: Fitness shaping: "centered_rank", "z_score", "weights" (the utilities of NES), "identity", or
            a function from fitness [n] to utilities [n].
        noise: Source of the random numbers.

    Source: Sarkar et al. 2025, arXiv:2511.16652.
    """

    population_size: int = 128
    rank: int = 1
    factors: str = "held"
    dtype: str = "float32"
    shaping: str | Shaping = "centered_rank"
    noise: Noise = field(default_factory=Noise)

    def __post_init__(self) -> None:
        check_pairs(self.population_size)
        check_shaping(self.shaping)
        require_int("rank", self.rank)
        for name, choices in (("factors", FACTORS), ("dtype", DTYPES)):
            if getattr(self, name) not in choices:
                raise unknown_name_error(name, getattr(self, name), choices)

    def init(self, key: Key, mean: Params) -> OpenESState:
        return init_openes_state(mean, self.noise, key)

    def ask(self, key: Key, state: OpenESState) -> tuple[Seeds, OpenESState]:
        """Return the individuals as seeds, leaves [n, ...]."""
        return self.noise.sample_seeds(key, self.population_size, self.noise_size(state.mean)), state

    def center_genome(self, state: OpenESState) -> Seeds:
        """Return a seed without noise, which stands for the mean."""
        del state
        return create_zero_seed()

    def materialize(self, state: OpenESState, genomes: Seeds) -> Any:
        """Return individuals, leaves [m, ...], with kernels as Factors; with factors="drawn", return the seeds."""
        if self.factors == "drawn":
            return genomes
        size, made = self.noise_size(state.mean), self.make_member_builder(state)
        return self.noise.materialize(genomes, state.table, size, made)

    def to_params(self, state: OpenESState, genome: Any) -> Params:
        """Return the parameters of one seed, or of one individual from `materialize`, with kernels as LowRankKernel."""
        held = genome
        if isinstance(genome, Seeds):
            noise = self.noise.generate_row(genome, state.table, self.noise_size(state.mean))
            held = self.make_member_builder(state)(noise, genome.sign)

        def to_low_rank(mean: Array, own: Any) -> Any:
            return (
                LowRankKernel(cast_to_dtype(mean, self.dtype), own.left, own.right) if isinstance(own, Factors) else own
            )

        return jax.tree.map(to_low_rank, state.mean, held)

    def tell(
        self, key: Key, genomes: Seeds, fitness: Float[Array, " n"], state: OpenESState
    ) -> tuple[OpenESState, Metrics]:
        del key
        like, highest = self.create_zero_noise(state.mean), jax.lax.Precision.HIGHEST

        def sum_weighted_noise(weights: Float[Array, " m"], rows: Float[Array, "m size"]) -> Params:
            def leaf(mean: Array, noise: Any) -> Array:
                del mean
                if not isinstance(noise, Factors):
                    return jnp.tensordot(weights, noise, 1, precision=highest)
                return jnp.einsum("m,mri,mro->io", weights, noise.left, noise.right, precision=highest) * self.scale

            return jax.tree.map(leaf, state.mean, unflatten_population(rows, like))

        utility = apply_shaping(self.shaping, fitness)
        total = flatten_member(
            sum_seed_noise(self.noise, genomes, utility, state.table, self.noise_size(state.mean), sum_weighted_noise)
        )
        return self.apply_gradient(state, total / (len(fitness) * self.std))

    def solution(self, state: OpenESState) -> Params:
        return state.mean

    @property
    def scale(self) -> float:
        """Return the factor 1 / sqrt(rank), which gives each entry of A^T B variance 1."""
        return float(1 / np.sqrt(self.rank))

    def create_zero_noise(self, mean: Params) -> Any:
        """Return zeros with the structure of one individual's noise: Factors for kernels, else arrays.

        Args:
            mean: Mean of the search, as parameters.
        """

        def leaf(path: tuple[Any, ...], x: Array) -> Any:
            if x.ndim != 2 or not path or getattr(path[-1], "key", None) != "kernel":
                return jnp.zeros(x.shape, x.dtype)  # zeros_like would keep the sharding of x
            return Factors(*(jnp.zeros((self.rank, n), x.dtype) for n in x.shape))

        return tree_map_with_path(leaf, mean)

    def noise_size(self, mean: Params) -> int:
        """Return the number of noise values of one individual.

        Args:
            mean: Mean of the search, as parameters.
        """
        return sum(x.size for x in jax.tree.leaves(self.create_zero_noise(mean)))

    def make_member_builder(self, state: OpenESState) -> Callable[[Array, Array], Any]:
        """Return a function from the noise [size] and the sign of an individual to its stored form.

        In this form, a kernel is the Factors of its difference to the mean, and any other leaf is the mean
        plus noise.

        Args:
            state: State of the search, with the mean.
        """
        like = self.create_zero_noise(state.mean)

        def build_member(noise: Array, sign: Array) -> Any:
            def leaf(mean: Array, noise: Any) -> Any:
                if not isinstance(noise, Factors):
                    return mean + self.std * sign * noise
                assert not isinstance(noise.right, QuantizedArray)
                left = self.std * self.scale * noise.left
                return Factors(cast_to_dtype(left, self.dtype), cast_to_dtype(sign * noise.right, self.dtype))

            return jax.tree.map(leaf, state.mean, unflatten_member(noise, like))

        return build_member
