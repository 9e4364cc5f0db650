"""NSGA-II, a multi-objective genetic algorithm."""

from collections.abc import Mapping
from dataclasses import field

import jax
import jax.numpy as jnp
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Array, Float, Int

from evorl import tree
from evorl.ec import objectives
from evorl.ec.flatten import flatten_population, unflatten_population
from evorl.ec.multi_objective import MultiObjectiveEvolver
from evorl.ec.noise import perturb_members
from evorl.ec.variation import (
    BoundedSBX,
    Crossover,
    Mutation,
    PolynomialMutation,
)
from evorl.errors import require_int
from evorl.parts import Number, number, part
from evorl.types import Key, Metrics, Params, SearchResults


@struct.dataclass
class NSGA2State:
    parents: Params  # leaves [n, ...], sorted from the best
    fitness: Float[Array, "n m"]  # of the parents; WORST_FITNESS if not evaluated yet
    rank: Int[Array, " n"]  # Pareto rank of each parent
    children: Params  # offspring, which ask returns, leaves [n, ...]


@part
class NSGA2(MultiObjectiveEvolver):
    """NSGA-II: a multi-objective genetic algorithm with non-dominated sorting and crowding distance.

    The better half of parents and offspring become the next parents. An individual is better if it has a
    lower Pareto rank, or the same rank and a larger crowding distance. Parents of offspring are selected by
    binary tournaments: the winner dominates the other one or, if neither dominates, has the larger crowding
    distance, as in the authors' code. The solution is the best individual in the first objective; `results`
    returns the Pareto front. The defaults are from section V of the paper, except for the
    distribution index of the crossover, 15 (the paper has 20).

    Args:
        population_size: Number of individuals per generation.
        objectives: Weight of each objective by name: "return" or an episode statistic of the environment. A
            negative weight minimizes the objective. By default, the only objective is the return, or all
            objectives of a problem.
        crossover: Crossover operator.
        mutation: Mutation operator.

    Source: Deb et al. 2002, doi:10.1109/4235.996017.
    """

    population_size: int = 128
    objectives: Mapping[str, float] = field(default_factory=FrozenDict)
    crossover: Crossover = field(default_factory=BoundedSBX)
    mutation: Mutation = field(default_factory=PolynomialMutation)
    initial_std: Number = number(
        0.0,
        0,
        about="standard deviation of the noise that is added to the first generation",
    )
    crossover_rate: Number = number(0.9, 0, 1, "fraction of the children that have two parents")
    mutation_rate: Number = number(1.0, 0, 1, "fraction of the children that are mutated")

    def __post_init__(self) -> None:
        object.__setattr__(self, "objectives", FrozenDict(self.objectives))
        require_int("population_size", self.population_size, 2)
        objectives.check_objectives(self.objectives)

    def init(self, key: Key, mean: Params) -> NSGA2State:
        return self.from_members(key, tree.broadcast(mean, self.population_size), mean)

    def from_members(self, key: Key, members: Params, mean: Params) -> NSGA2State:
        """Return a state whose first generation is the given individuals, leaves [n, ...]."""
        members = perturb_members(key, members, self.initial_std)
        n, m = self.population_size, max(len(self.objectives), 1)
        parents = tree.broadcast(mean, n)
        return NSGA2State(
            parents, jnp.full((n, m), objectives.WORST_FITNESS, jnp.float32), jnp.zeros(n, jnp.int32), members
        )

    def tell(
        self,
        key: Key,
        genomes: Params,
        fitness: Float[Array, "n m"],
        state: NSGA2State,
    ) -> tuple[NSGA2State, Metrics]:
        n, (key_parents, *keys) = self.population_size, jax.random.split(key, 4)
        members = jnp.concatenate([flatten_population(state.parents), flatten_population(genomes)])
        fitness = jnp.concatenate([state.fitness, objectives.sanitize_objectives(fitness)])
        rank = objectives.compute_pareto_ranks(fitness, n)
        crowding = objectives.crowding_distance(fitness, rank)
        order = jnp.lexsort((-crowding, rank))[:n]
        members, fitness = members[order], fitness[order]
        parents = members[select_winners(key_parents, fitness, crowding[order])[jnp.arange(n + n % 2) % n]]
        like = tree.index(genomes, 0)
        children = self.create_children(keys, parents, like)
        state = NSGA2State(unflatten_population(members, like), fitness, rank[order], children)
        return state, {"front": (rank[order] == 0).sum().astype(jnp.float32)}

    def results(self, state: NSGA2State) -> SearchResults:
        """Return the Pareto front of the parents."""
        evaluated = (state.fitness > objectives.WORST_FITNESS).all(1)
        return SearchResults(state.parents, state.fitness, (state.rank == 0) & evaluated)


def select_winners(key: Key, fitness: Float[Array, "n m"], crowding: Float[Array, " n"]) -> Int[Array, " n"]:
    """Return the winners of n binary tournaments, in which each individual takes part twice.

    The pairs are taken from two random permutations.
    """
    orders = jnp.concatenate([tree.random_permutation(one, len(fitness)) for one in jax.random.split(key)])
    first, second = orders.reshape(-1, 2).T
    a, b = fitness[first], fitness[second]
    a_dominates, b_dominates = ((x >= y).all(1) & (x > y).any(1) for x, y in ((a, b), (b, a)))
    return jnp.where(a_dominates | (~b_dominates & (crowding[first] >= crowding[second])), first, second)
