"""A genetic algorithm whose members are chains of seeds."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Float, Int, UInt32

from evorl import tree
from evorl.ec.noise import apart, gaussian
from evorl.ec.rows import member, row
from evorl.ec.shaping import best_first
from evorl.errors import require
from evorl.hyperparameters import Number, hyperparameter
from evorl.priors import LogUniform
from evorl.types import Key, Metrics, Params


@struct.dataclass
class SeedGAHyperparams:
    """Default: Such et al. 2017, table 4, of Atari."""

    std: Number = hyperparameter(0.002, 0, about="of the noise on every parameter", prior=LogUniform(5e-4, 0.5))


@struct.dataclass
class Descent:
    """Members, leaves [n, ...]: a parent, and the seed of what it is changed by."""

    parent: Any  # [n] int32
    words: Any  # [n, 2] uint32, 0 for no change


@struct.dataclass
class SeedGAState:
    parents: Any  # leaves [num_parents, ...], the fittest first
    root: Any  # [num_parents] int32, from which of the first parents each comes
    chain: Any  # [num_parents, generations, 2] uint32, the seeds of its changes since
    stds: Any  # [generations], by how much they changed
    generation: Any  # [] int32


@dataclass(frozen=True)
class SeedGA:
    """The num_parents fittest have all children, each by noise that one seed stands for (Such et al. 2017).

    Source: arXiv:1712.06567, algorithm 1 and section 3.1. The fittest lives on unchanged. Weights are kept of parents
    alone, others are drawn where they play; a parent is also `rebuilt`, on a CPU bit by bit, from its first ancestor
    and its chain, of at most `generations` seeds, beyond which none are noted. The first parents are initialized apart.
    """

    population_size: int = 1000
    num_parents: int = 20
    generations: int = 1000  # of whose seeds there is room in a chain

    def __post_init__(self) -> None:
        n, parents = self.population_size, self.num_parents
        require(n >= 2, "population_size", n, "must be at least 2")
        require(1 <= parents <= n, "num_parents", parents, f"must be from 1 to population_size, {n}")
        require(self.generations >= 1, "generations", self.generations, "must be at least 1")

    def hyperparams(self) -> SeedGAHyperparams:
        return SeedGAHyperparams()

    def init(self, key: Key, mean: Params, hyperparams: SeedGAHyperparams) -> SeedGAState:
        return self.from_members(key, tree.broadcast(mean, self.num_parents), mean, hyperparams)

    def from_members(self, key: Key, members: Params, mean: Params, hyperparams: SeedGAHyperparams) -> SeedGAState:
        """The first parents are the first of members, leaves [n, ...]."""
        del key, mean, hyperparams
        parents, n = tree.index(members, slice(self.num_parents)), self.num_parents
        chain = jnp.zeros((n, self.generations, 2), jnp.uint32)
        return SeedGAState(parents, jnp.arange(n, dtype=jnp.int32), chain, jnp.zeros(self.generations), jnp.int32(0))

    def ask(self, key: Key, state: SeedGAState, hyperparams: SeedGAHyperparams) -> tuple[Descent, SeedGAState]:
        """Members as a parent and a seed, leaves [n, ...]; the first is the fittest as it was."""
        del hyperparams
        key_parent, key_words = jax.random.split(key)
        n = self.population_size
        parent = jax.random.randint(key_parent, (n,), 0, self.num_parents).at[0].set(0)
        return Descent(parent, jax.random.bits(key_words, (n, 2), np.uint32).at[0].set(0)), state

    def center(self, state: SeedGAState) -> Descent:
        """That of the fittest parent."""
        del state
        return Descent(jnp.int32(0), jnp.zeros(2, jnp.uint32))

    def drawn(self, state: SeedGAState, genomes: Descent, hyperparams: SeedGAHyperparams) -> Params:
        """Members as parameters, leaves [m, ...], one after another."""

        def write(i: Array, members: Params) -> Params:
            one = tree.index(genomes, i)
            new = changed(tree.index(state.parents, one.parent), one.words, hyperparams.std)
            return tree.put(members, i, new)

        m = len(genomes.parent)
        return jax.lax.fori_loop(0, m, write, tree.broadcast(tree.index(state.parents, 0), m))

    def to_params(self, state: SeedGAState, genome: Any, hyperparams: SeedGAHyperparams) -> Params:
        """The parameters of one descent, or of what is held already."""
        if not isinstance(genome, Descent):
            return genome
        return changed(tree.index(state.parents, genome.parent), genome.words, hyperparams.std)

    def tell(
        self,
        key: Key,
        genomes: Descent,
        fitness: Float[Array, " n"],
        state: SeedGAState,
        hyperparams: SeedGAHyperparams,
    ) -> tuple[SeedGAState, Metrics]:
        del key
        chosen = tree.index(genomes, best_first(fitness)[: self.num_parents])
        parents, at = self.drawn(state, chosen, hyperparams), state.generation
        chain = state.chain[chosen.parent].at[:, at].set(chosen.words, mode="drop")
        after = SeedGAState(
            parents, state.root[chosen.parent], chain, state.stds.at[at].set(hyperparams.std, mode="drop"), at + 1
        )
        return after, {"chain": jnp.float32(at + 1)}

    def solution(self, state: SeedGAState) -> Params:
        return tree.index(state.parents, 0)

    def rebuilt(self, state: SeedGAState, roots: Params, parent: Int[Array, ""] | int) -> Params:
        """The weights of a parent from the first parents, leaves [num_parents, ...], and its chain alone."""

        def change(params: Params, link: Any) -> tuple[Params, None]:
            return changed(params, *link), None

        root = tree.index(roots, state.root[parent])
        return jax.lax.scan(change, root, (state.chain[parent], state.stds))[0]


def changed(params: Params, words: UInt32[Array, "2"], std: Number) -> Params:
    """params with the noise of a seed, of which words of 0 have none."""
    numbers = row(params)

    def noise(i: Array) -> Array:
        del i
        return std * gaussian(threefry_2x32(words, jax.lax.iota(np.uint32, numbers.size)))

    turn = (words[0] >> 2).astype(jnp.int32)  # any number: apart, so that it is the same bits whatever it is added to
    return member(numbers + jnp.where((words == 0).all(), 0.0, apart(noise, turn)), params)
