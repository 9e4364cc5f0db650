"""NSGA-II: a genetic algorithm whose members are compared by the front that they are in, and by how crowded it is."""

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
    parents: Params  # leaves [n, ...], the best front first
    fitness: Float[Array, "n m"]  # of the parents, WORST_FITNESS where nobody was evaluated yet
    rank: Int[Array, " n"]  # the front of each
    children: Params  # leaves [n, ...], who are asked for


@part
class NSGA2(MultiObjectiveEvolver):
    """The best half of parents and children are the next parents, whose children's parents won tournaments of two.

    Deb et al. 2002, doi:10.1109/4235.996017. Better is who is in an earlier front, or in the same front less
    crowded; in a tournament who dominates the other, or where neither does, is less crowded, as in the authors'
    code. objectives names what it is told of episodes, "return" or what the environment summarizes, and what each
    weighs, below 0 to minimize it; by default it is the return, of a problem all its objectives. The solution is
    the best of the first objective; the front is in `results`. Defaults: Deb et al. 2002, section V.
    """

    population_size: int = 128
    objectives: Mapping[str, float] = field(default_factory=FrozenDict)
    crossover: Crossover = field(default_factory=BoundedSBX)
    mutation: Mutation = field(default_factory=PolynomialMutation)
    initial_std: Number = number(0.0, 0, about="of noise on the first members, which are initialized apart")
    crossover_rate: Number = number(0.9, 0, 1, "of the children, those of two parents")
    mutation_rate: Number = number(1.0, 0, 1, "of the children, those that are mutated")

    def __post_init__(self) -> None:
        object.__setattr__(self, "objectives", FrozenDict(self.objectives))
        require_int("population_size", self.population_size, 2)
        objectives.check_objectives(self.objectives)

    def init(self, key: Key, mean: Params) -> NSGA2State:
        return self.from_members(key, tree.broadcast(mean, self.population_size), mean)

    def from_members(self, key: Key, members: Params, mean: Params) -> NSGA2State:
        """The first generation is members, leaves [n, ...]."""
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
        """The first front."""
        evaluated = (state.fitness > objectives.WORST_FITNESS).all(1)
        return SearchResults(state.parents, state.fitness, (state.rank == 0) & evaluated)


def select_winners(key: Key, fitness: Float[Array, "n m"], crowding: Float[Array, " n"]) -> Int[Array, " n"]:
    """Who wins n tournaments of two, of which everyone is in two: two random orders, cut into pairs."""
    orders = jnp.concatenate([tree.random_permutation(one, len(fitness)) for one in jax.random.split(key)])
    first, second = orders.reshape(-1, 2).T
    a, b = fitness[first], fitness[second]
    a_dominates, b_dominates = ((x >= y).all(1) & (x > y).any(1) for x, y in ((a, b), (b, a)))
    return jnp.where(a_dominates | (~b_dominates & (crowding[first] >= crowding[second])), first, second)
