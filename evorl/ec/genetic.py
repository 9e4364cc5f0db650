"""Genetic algorithm on parameters."""

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
    """Genetic algorithm with elitism and tournament selection.

    The elites survive unchanged. All other individuals are children of parents selected by tournaments. The
    solution is the fittest individual of the last generation. A workflow initializes each individual of the
    first generation independently, as the papers do. `init` starts from a single individual and adds noise
    with standard deviation initial_std. Crossover is off by default, as in Such et al. 2017 and in ERL. With
    ERLMutation, this is the population of ERL (Khadka & Tumer 2018, arXiv:1805.07917).

    Args:
        population_size: Number of individuals per generation.
        num_elites: Number of elites.
        tournament: Number of random individuals in a tournament, the fittest of which becomes a parent.
        crossover: Crossover operator.
        mutation: Mutation operator.

    Source: tournament selection, Goldberg & Deb 1991; Such et al. 2017, arXiv:1712.06567.
    """

    population_size: int = 128
    num_elites: int = 16
    tournament: int = 3
    crossover: Crossover = field(default_factory=NPointCrossover)
    mutation: Mutation = field(default_factory=GaussianMutation)
    initial_std: Number = number(
        0.0,
        0,
        about="standard deviation of the noise that is added to the first generation",
    )
    crossover_rate: Number = number(0.0, 0, 1, "fraction of the children that have two parents")
    mutation_rate: Number = number(1.0, 0, 1, "fraction of the children that are mutated")

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
        """Return a state whose first generation is the given individuals, leaves [n, ...], plus noise.

        The solution is `mean`, which has not been evaluated, until the first `tell`.
        """
        return GAState(perturb_members(key, members, self.initial_std), mean)

    def ask(self, key: Key, state: GAState) -> tuple[Params, GAState]:
        """Return the population as parameters, leaves [n, ...]."""
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
        """Return the winners of tournaments between random individuals.

        Args:
            key: Random key.
            fitness: Fitness of the population, shape [n].
            count: Number of tournaments.

        Returns:
            Indices of the winners, shape [count].
        """
        entrants = integers(key, (count, self.tournament), len(fitness))
        best = sanitize_fitness(fitness)[entrants].argmax(-1)
        return jnp.take_along_axis(entrants, best[:, None], axis=1)[:, 0]

    def solution(self, state: GAState) -> Params:
        return state.solution
