"""Genetic algorithm whose individuals are stored as chains of seeds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Bool, Float, Int, UInt32

from evorl import tree
from evorl.ec.flatten import flatten_member, unflatten_member
from evorl.ec.noise import choose_block, compute_unfused, to_gaussian
from evorl.ec.shaping import argsort_best_first
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.types import Key, Metrics, Params, SeedEvolver


@struct.dataclass
class SeedGenome:
    """Individuals, leaves [n, ...], as the index of a parent and the seed of a mutation."""

    parent: Int[Array, "*n"]
    words: UInt32[Array, "*n 2"]  # 0 for no mutation


@struct.dataclass
class SeedGAState:
    parents: Params  # leaves [num_parents, ...], the elite first
    root: Int[Array, " num_parents"]  # index of the initial parent that each one descends from
    chain: UInt32[Array, "num_parents generations 2"]  # seeds of its mutations since then
    stds: Float[Array, " generations"]  # standard deviations of the mutations
    generation: Int[Array, ""]
    confirming: Bool[Array, ""]  # whether the next ask returns the candidates for the elite


@part
class SeedGA(SeedEvolver):
    """Genetic algorithm with truncation selection, whose individuals are stored as chains of seeds.

    The num_parents fittest individuals are the parents of the next generation. Each child is a parent plus
    noise from one seed.

    The elite survives unchanged. With candidates, every second generation only serves to choose it: the
    candidates are the previous elite and the next fittest parents, each is evaluated by an equal share of the
    population, and the one with the highest mean fitness becomes the elite. (The paper evaluates each in 30
    episodes.) Without candidates, the elite is the fittest individual.

    Only the weights of the parents are stored; other individuals are generated for their evaluation. A parent
    can also be reconstructed from its first ancestor and its chain of seeds (`rebuild_parent`), bit for bit
    on a CPU. A chain holds at most `generations` seeds; later ones are not recorded.

    The initial parents are initialized independently. The default of std is from table 4 of the paper, for
    Atari.

    Args:
        population_size: Number of individuals per generation.
        num_parents: Number of parents.
        generations: Maximum length of a chain of seeds.
        candidates: Number of candidates for the elite, at most num_parents; 0 for none.

    Source: Such et al. 2017, arXiv:1712.06567, algorithm 1 and section 3.1.
    """

    population_size: int = 1000
    num_parents: int = 20
    generations: int = 1000
    candidates: int = 10
    std: Number = number(
        0.002, 0, about="standard deviation of the noise on every parameter", prior=LogUniform(5e-4, 0.5)
    )

    def __post_init__(self) -> None:
        n, parents = self.population_size, self.num_parents
        require_int("population_size", n, 2)
        require(1 <= parents <= n, "num_parents", parents, f"must be from 1 to population_size, {n}")
        require_int("generations", self.generations)
        allowed = f"must be from 0 to num_parents, {parents}"
        require(0 <= self.candidates <= parents, "candidates", self.candidates, allowed)

    def init(self, key: Key, mean: Params) -> SeedGAState:
        return self.from_members(key, tree.broadcast(mean, self.num_parents), mean)

    def from_members(self, key: Key, members: Params, mean: Params) -> SeedGAState:
        """Return a state whose parents are the first of the given individuals, leaves [n, ...]."""
        del key, mean
        parents, n = tree.index(members, slice(self.num_parents)), self.num_parents
        chain, stds = jnp.zeros((n, self.generations, 2), jnp.uint32), jnp.zeros(self.generations)
        return SeedGAState(parents, jnp.arange(n, dtype=jnp.int32), chain, stds, jnp.int32(0), jnp.bool_(False))

    def ask(self, key: Key, state: SeedGAState) -> tuple[SeedGenome, SeedGAState]:
        """Return the genomes of children, the elite first, or of the candidates, leaves [n, ...]."""
        key_parent, key_words = jax.random.split(key)
        n = self.population_size
        parent = jax.random.randint(key_parent, (n,), 0, self.num_parents).at[0].set(0)
        children = SeedGenome(parent, jax.random.bits(key_words, (n, 2), np.uint32).at[0].set(0))
        if not self.candidates:
            return children, state
        return tree.select(state.confirming, as_unmutated_genomes(jnp.asarray(self.candidate_index)), children), state

    @property
    def candidate_index(self) -> Int[np.ndarray, " n"]:
        """Return the index of the candidate that each individual evaluates, shape [n]."""
        return np.arange(self.population_size, dtype=np.int32) % self.candidates

    def center_genome(self, state: SeedGAState) -> SeedGenome:
        """Return the genome of the elite."""
        del state
        return SeedGenome(jnp.int32(0), jnp.zeros(2, jnp.uint32))

    def materialize(self, state: SeedGAState, genomes: SeedGenome) -> Params:
        """Return the parameters of individuals, leaves [m, ...], generated one after another on a CPU."""
        m = len(genomes.parent)

        def mutate(one: SeedGenome) -> Params:
            return mutate_with_seed(tree.index(state.parents, one.parent), one.words, self.std)

        def write(i: Array, members: Params) -> Params:
            return tree.set_row(members, i, mutate(tree.index(genomes, i)))

        if jax.default_backend() != "cpu":
            size = tree.nbytes(tree.index(state.parents, 0)) // 4
            return jax.lax.map(mutate, genomes, batch_size=choose_block(m, size))
        return jax.lax.fori_loop(0, m, write, tree.broadcast(tree.index(state.parents, 0), m))

    def to_params(self, state: SeedGAState, genome: Any) -> Params:
        """Return the parameters of one genome; parameters from `materialize` are returned unchanged."""
        if not isinstance(genome, SeedGenome):
            return genome
        return mutate_with_seed(tree.index(state.parents, genome.parent), genome.words, self.std)

    def tell(
        self,
        key: Key,
        genomes: SeedGenome,
        fitness: Float[Array, " n"],
        state: SeedGAState,
    ) -> tuple[SeedGAState, Metrics]:
        del key
        chosen, confirmed = self._select_parents(genomes, fitness, state), state.confirming
        generation = state.generation + ~confirmed
        at = jnp.where(confirmed, self.generations, state.generation)  # out of bounds, hence dropped: no mutation
        chain = state.chain[chosen.parent].at[:, at].set(chosen.words, mode="drop")
        stds = state.stds.at[at].set(self.std, mode="drop")
        parents, root = self.materialize(state, chosen), state.root[chosen.parent]
        confirming = ~confirmed if self.candidates else confirmed
        return SeedGAState(parents, root, chain, stds, generation, confirming), {"chain": jnp.float32(generation)}

    def _select_parents(self, genomes: SeedGenome, fitness: Float[Array, " n"], state: SeedGAState) -> SeedGenome:
        """Return the genomes of the next parents, the elite first.

        With candidates, the elite remains a parent in an ordinary generation, whatever its fitness there.
        """
        if not self.candidates:
            return tree.index(genomes, argsort_best_first(fitness)[: self.num_parents])
        kept = fitness.at[0].set(jnp.where(state.generation > 0, jnp.inf, fitness[0]))
        fittest = tree.index(genomes, argsort_best_first(kept)[: self.num_parents])
        confirmed = jnp.zeros(self.candidates).at[self.candidate_index].add(fitness) / np.bincount(self.candidate_index)
        order = jnp.append(argsort_best_first(confirmed), jnp.arange(self.candidates, self.num_parents))
        return tree.select(state.confirming, as_unmutated_genomes(order), fittest)

    def solution(self, state: SeedGAState) -> Params:
        return tree.index(state.parents, 0)

    def rebuild_parent(self, state: SeedGAState, roots: Params, parent: Int[Array, ""] | int) -> Params:
        """Reconstruct the parameters of a parent from the initial parents and its chain of seeds.

        Args:
            state: State of the search.
            roots: The initial parents, leaves [num_parents, ...].
            parent: Index of the parent.

        Returns:
            The parameters of the parent.
        """

        def change(params: Params, link: Any) -> tuple[Params, None]:
            return mutate_with_seed(params, *link), None

        root = tree.index(roots, state.root[parent])
        return jax.lax.scan(change, root, (state.chain[parent], state.stds))[0]


def as_unmutated_genomes(parent: Int[Array, " n"]) -> SeedGenome:
    """Return genomes that stand for the given parents without mutation."""
    return SeedGenome(parent, jnp.zeros((len(parent), 2), jnp.uint32))


def mutate_with_seed(params: Params, words: UInt32[Array, "2"], std: Number) -> Params:
    """Add the noise of a seed to parameters; a seed of zeros stands for no noise."""
    numbers = flatten_member(params)

    def noise(i: Array) -> Array:
        del i
        return std * to_gaussian(threefry_2x32(words, jax.lax.iota(np.uint32, numbers.size)))

    turn = (words[0] >> 2).astype(jnp.int32)  # any value >= 0; without fusion, all uses are bitwise identical
    return unflatten_member(numbers + jnp.where((words == 0).all(), 0.0, compute_unfused(noise, turn)), params)
