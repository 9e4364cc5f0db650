"""A genetic algorithm on parameter pytrees."""

from dataclasses import field

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl import tree
from evorl.ec.flatten import flatten_population, leaf_indices, unflatten_population
from evorl.ec.noise import integers, perturb_members
from evorl.ec.shaping import argsort_best_first, sanitize_fitness
from evorl.ec.variation import (
    Crossover,
    GaussianMutation,
    Mutation,
    NPointCrossover,
    create_offspring,
)
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.types import Evolver, Key, Metrics, Params


@struct.dataclass
class GAState:
    members: Params  # leaves [n, ...]
    solution: Params


@part
class GA(Evolver):
    """Elites live on unchanged; the others are children of parents that won tournaments (Goldberg & Deb 1991).

    Such et al. 2017, arXiv:1712.06567; with ERLMutation the population of Khadka & Tumer 2018, arXiv:1805.07917.
    The center is the fittest member of the last generation. In a workflow every first member is initialized on its
    own, as in both; init alone has but one to begin with, and spreads the members around it by initial_std.
    Crossover is off by default, as in Such et al. 2017 and in ERL.
    """

    population_size: int = 128
    num_elites: int = 16
    tournament: int = 3  # members of which the fittest is a parent
    crossover: Crossover = field(default_factory=NPointCrossover)
    mutation: Mutation = field(default_factory=GaussianMutation)
    initial_std: Number = number(0.0, 0, about="of noise on the first members, which are initialized apart")
    crossover_rate: Number = number(0.0, 0, 1, "of the children, those of two parents")
    mutation_rate: Number = number(1.0, 0, 1, "of the children, those that are mutated")

    def __post_init__(self) -> None:
        n = self.population_size
        require_int("population_size", n, 2)
        elites = f"must be from 0 to population_size - 1, {n - 1}, so that there are children"
        require_int("num_elites", self.num_elites, 0)
        require(self.num_elites < n, "num_elites", self.num_elites, elites)
        require_int("tournament", self.tournament)

    def init(self, key: Key, mean: Params) -> GAState:
        return self.from_members(key, tree.broadcast(mean, self.population_size), mean)

    def from_members(self, key: Key, members: Params, mean: Params) -> GAState:
        """The first generation is members, leaves [n, ...], and the center, which nobody has evaluated, is mean."""
        return GAState(perturb_members(key, members, self.initial_std), mean)

    def ask(self, key: Key, state: GAState) -> tuple[Params, GAState]:
        """Members as parameters, leaves [n, ...]."""
        del key
        return state.members, state

    def tell(self, key: Key, genomes: Params, fitness: Float[Array, " n"], state: GAState) -> tuple[GAState, Metrics]:
        key_parents, *keys = jax.random.split(key, 4)
        members, order = flatten_population(genomes), argsort_best_first(fitness)
        n = self.population_size - self.num_elites
        mothers, fathers = (
            members[parents] for parents in self.select_parents(key_parents, fitness, 2 * n).reshape(2, n)
        )
        children = create_offspring(tuple(keys), (mothers, fathers), self, leaf_indices(state.solution))
        following = jnp.concatenate([members[order[: self.num_elites]], children])
        return GAState(unflatten_population(following, state.solution), tree.index(genomes, order[0])), {}

    def select_parents(self, key: Key, fitness: Float[Array, " n"], count: int) -> Int[Array, " count"]:
        """The fittest of each of `count` tournaments among random members."""
        entrants = integers(key, (count, self.tournament), len(fitness))
        best = sanitize_fitness(fitness)[entrants].argmax(-1)
        return jnp.take_along_axis(entrants, best[:, None], axis=1)[:, 0]

    def solution(self, state: GAState) -> Params:
        return state.solution
