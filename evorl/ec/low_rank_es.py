"""An evolution strategy whose members differ from their mean by matrices of low rank."""

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
from evorl.ec.seeds import create_zero_seed, materialize_members, sum_seed_noise
from evorl.ec.shaping import Shaping, apply_shaping, check_shaping
from evorl.errors import require_int, unknown_name_error
from evorl.networks.low_rank import DTYPES, LowRankKernel, QuantizedArray, cast_to_dtype
from evorl.parts import part
from evorl.types import Key, Metrics, Params, SeedEvolver

FACTORS = ("held", "drawn")


@struct.dataclass
class Factors:
    """Of one matrix left^T right."""

    left: Float[Array, "rank inputs"] | QuantizedArray
    right: Float[Array, "rank outputs"] | QuantizedArray


@part
class LowRankES(AdamES, SeedEvolver):
    """EGGROLL: OpenES with noise of low rank on kernels (Sarkar et al. 2025, arXiv:2511.16652).

    A kernel, which is a matrix of that name that the network applies as x @ kernel, is W + s std / sqrt(rank) A^T B
    with standard normal A and B and s = 1 or -1; every other leaf has full noise. Members share W, and differ by seeds:
    their factors are held while they play, or drawn at each call, which needs no memory and takes longer. Products are
    taken in dtype, of DTYPES, with A and B rounded to it; the mean stays float32.
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
        """Members as seeds, leaves [n, ...]."""
        return self.noise.sample_seeds(key, self.population_size, self.noise_size(state.mean)), state

    def center_genome(self, state: OpenESState) -> Seeds:
        """That of the mean."""
        del state
        return create_zero_seed()

    def materialize(self, state: OpenESState, genomes: Seeds) -> Any:
        """What is held of members, leaves [m, ...]: kernels as Factors; or their seeds, to be drawn at each call."""
        if self.factors == "drawn":
            return genomes
        size, made = self.noise_size(state.mean), self.make_member_builder(state)
        return materialize_members(self.noise, genomes, state.table, size, self.population_size, made)

    def to_params(self, state: OpenESState, genome: Any) -> Params:
        """The parameters of one seed, or of what is held: kernels are LowRankKernel."""
        held = genome
        if isinstance(genome, Seeds):
            noise = self.noise.generate_row(genome, state.table, self.noise_size(state.mean), self.population_size)
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
        """Of a product of factors, whose numbers then have variance 1."""
        return float(1 / np.sqrt(self.rank))

    def create_zero_noise(self, mean: Params) -> Any:
        """The noise of a member, as zeros: of a kernel its factors, of another leaf as many numbers."""

        def leaf(path: tuple[Any, ...], x: Array) -> Any:
            if x.ndim != 2 or not path or getattr(path[-1], "key", None) != "kernel":
                return jnp.zeros(x.shape, x.dtype)  # zeros_like would keep where x lies
            return Factors(*(jnp.zeros((self.rank, n), x.dtype) for n in x.shape))

        return tree_map_with_path(leaf, mean)

    def noise_size(self, mean: Params) -> int:
        """Numbers of a member's noise."""
        return sum(x.size for x in jax.tree.leaves(self.create_zero_noise(mean)))

    def make_member_builder(self, state: OpenESState) -> Callable[[Array, Array], Any]:
        """Gives what is held of a member of its noise [size] and its sign.

        Kernels are Factors of what is added to the mean's, other leaves as they are with it.
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
