"""An evolution strategy whose members differ from their mean by matrices of low rank."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.tree_util import tree_map_with_path
from jaxtyping import Array, Float

from evorl.ec.noise import Noise, Seeds
from evorl.ec.openes import OpenESHyperparams, OpenESState, ascended, begun, check_pairs
from evorl.ec.rows import member, population, row
from evorl.ec.seeds import center, drawn, summed
from evorl.ec.shaping import Shaping, check_shaping, shaped
from evorl.errors import require_whole, unknown
from evorl.networks.low_rank import DTYPES, LowRank, stored
from evorl.types import Key, Metrics, Params

FACTORS = ("held", "drawn")


@struct.dataclass
class Factors:
    """Of one matrix left^T right."""

    left: Any  # [rank, inputs]
    right: Any  # [rank, outputs]


@dataclass(frozen=True)
class LowRankES:
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
        require_whole("rank", self.rank)
        for name, choices in (("factors", FACTORS), ("dtype", DTYPES)):
            if getattr(self, name) not in choices:
                raise unknown(name, getattr(self, name), choices)

    def hyperparams(self) -> OpenESHyperparams:
        return OpenESHyperparams()

    def init(self, key: Key, mean: Params, hyperparams: OpenESHyperparams) -> OpenESState:
        del hyperparams
        return begun(mean, self.noise, key)

    def ask(self, key: Key, state: OpenESState, hyperparams: OpenESHyperparams) -> tuple[Seeds, OpenESState]:
        """Members as seeds, leaves [n, ...]."""
        del hyperparams
        return self.noise.seeds(key, self.population_size, self.size(state.mean)), state

    def center(self, state: OpenESState) -> Seeds:
        """That of the mean."""
        del state
        return center()

    def drawn(self, state: OpenESState, genomes: Seeds, hyperparams: OpenESHyperparams) -> Any:
        """What is held of members, leaves [m, ...]: kernels as Factors; or their seeds, to be drawn at each call."""
        if self.factors == "drawn":
            return genomes
        size, made = self.size(state.mean), self.made(state, hyperparams)
        return drawn(self.noise, genomes, state.table, size, self.population_size, made)

    def to_params(self, state: OpenESState, genome: Any, hyperparams: OpenESHyperparams) -> Params:
        """The parameters of one seed, or of what is held: kernels are LowRank."""
        held = genome
        if isinstance(genome, Seeds):
            noise = self.noise.row(genome, state.table, self.size(state.mean), self.population_size)
            held = self.made(state, hyperparams)(noise, genome.sign)

        def whole(mean: Array, own: Any) -> Any:
            return LowRank(stored(mean, self.dtype), own.left, own.right) if isinstance(own, Factors) else own

        return jax.tree.map(whole, state.mean, held)

    def tell(
        self, key: Key, genomes: Seeds, fitness: Float[Array, " n"], state: OpenESState, hyperparams: OpenESHyperparams
    ) -> tuple[OpenESState, Metrics]:
        del key
        like, highest = self.like(state.mean), jax.lax.Precision.HIGHEST

        def weighted(weights: Float[Array, " m"], rows: Float[Array, "m size"]) -> Params:
            def leaf(mean: Array, noise: Any) -> Array:
                del mean
                if not isinstance(noise, Factors):
                    return jnp.tensordot(weights, noise, 1, precision=highest)
                return jnp.einsum("m,mri,mro->io", weights, noise.left, noise.right, precision=highest) * self.scale

            return jax.tree.map(leaf, state.mean, population(rows, like))

        utility = shaped(self.shaping, fitness)
        total = row(summed(self.noise, genomes, utility, state.table, self.size(state.mean), weighted))
        return ascended(state, total / (len(fitness) * hyperparams.std), hyperparams)

    def solution(self, state: OpenESState) -> Params:
        return state.mean

    @property
    def scale(self) -> float:
        """Of a product of factors, whose numbers then have variance 1."""
        return float(1 / np.sqrt(self.rank))

    def like(self, mean: Params) -> Any:
        """The noise of a member, as zeros: of a kernel its factors, of another leaf as many numbers."""

        def leaf(path: tuple[Any, ...], x: Array) -> Any:
            if x.ndim != 2 or not path or getattr(path[-1], "key", None) != "kernel":
                return jnp.zeros(x.shape, x.dtype)  # zeros_like would keep where x lies
            return Factors(*(jnp.zeros((self.rank, n), x.dtype) for n in x.shape))

        return tree_map_with_path(leaf, mean)

    def size(self, mean: Params) -> int:
        """Numbers of a member's noise."""
        return sum(x.size for x in jax.tree.leaves(self.like(mean)))

    def made(self, state: OpenESState, hyperparams: OpenESHyperparams) -> Callable[[Array, Array], Any]:
        """Gives what is held of a member of its noise [size] and its sign.

        Kernels are Factors of what is added to the mean's, other leaves as they are with it.
        """
        like = self.like(state.mean)

        def made(noise: Array, sign: Array) -> Any:
            def leaf(mean: Array, noise: Any) -> Any:
                if not isinstance(noise, Factors):
                    return mean + hyperparams.std * sign * noise
                left = hyperparams.std * self.scale * noise.left
                return Factors(stored(left, self.dtype), stored(sign * noise.right, self.dtype))

            return jax.tree.map(leaf, state.mean, member(noise, like))

        return made
