"""RVEA, a multi-objective evolutionary algorithm guided by reference vectors."""

import math
from collections.abc import Mapping
from dataclasses import field
from itertools import combinations, pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Array, Bool, Float, Int

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
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.types import Key, Metrics, Params, SearchResults

EPSILON = 1e-9  # lower limit of divisors


@struct.dataclass
class RVEAState:
    parents: Params  # survivor of each direction, leaves [v, ...]
    fitness: Float[Array, "v m"]  # of the parents; WORST_FITNESS if a direction has none
    directions: Float[Array, "v m"]  # unit vectors
    children: Params  # offspring, which ask returns, leaves [n, ...]
    generation: Int[Array, ""]  # number of calls of tell


@part
class RVEA(MultiObjectiveEvolver):
    """Reference vector guided evolutionary algorithm (RVEA), for two or more objectives.

    Parents and offspring are divided among directions from the ideal point, and one individual survives in
    each direction. It is the one with the smallest angle-penalized distance to the ideal point: distance * (1
    + m * (t / generations)^alpha * angle / gap), with m objectives, generation t, and the angle `gap` between
    the direction and the one nearest to it.

    The directions are the largest simplex lattice (Das & Dennis 1998) with at most population_size points.
    `adaptations` times in a run, at equal intervals, they are scaled by the widths of the front. Parents mate
    at random. The solution is the best individual in the first objective; `results` returns the Pareto front.
    The defaults are from section IV-A of the paper.

    Args:
        population_size: Number of individuals per generation.
        generations: Number of generations of the run, for the schedules of the angle penalty and of the
            adaptations.
        adaptations: Number of adaptations of the directions in a run.
        objectives: Weight of each objective by name, as for NSGA2; at least two.
        crossover: Crossover operator.
        mutation: Mutation operator.

    Source: Cheng et al. 2016, doi:10.1109/TEVC.2016.2519378.
    """

    population_size: int = 105
    generations: int = 100
    adaptations: int = 10
    objectives: Mapping[str, float] = field(default_factory=FrozenDict)
    crossover: Crossover = field(default_factory=lambda: BoundedSBX(30.0))
    mutation: Mutation = field(default_factory=PolynomialMutation)
    alpha: Number = number(
        2.0, 0, about="exponent of the angle penalty: the larger it is, the later in the run angles count"
    )
    initial_std: Number = number(
        0.0,
        0,
        about="standard deviation of the noise that is added to the first generation",
    )
    crossover_rate: Number = number(1.0, 0, 1, "fraction of the children that have two parents")
    mutation_rate: Number = number(1.0, 0, 1, "fraction of the children that are mutated")

    def __post_init__(self) -> None:
        object.__setattr__(self, "objectives", FrozenDict(self.objectives))
        for name in ("population_size", "generations", "adaptations"):
            require_int(name, getattr(self, name))
        objectives.check_objectives(self.objectives)

    @property
    def lattice_directions(self) -> Float[np.ndarray, "v m"]:
        """Return the initial directions as unit vectors, shape [v, m].

        Raises:
            OptionError: If there are fewer than two objectives, or more objectives than individuals.
        """
        m, n = len(self.objectives), self.population_size
        require(m >= 2, "objectives", dict(self.objectives), "must be at least two; use an evolver for one objective")
        require(n >= m, "population_size", n, f"must be at least {m}, one for each objective")
        divisions = next(h for h in range(n + 1) if math.comb(h + m, m - 1) > n)
        return normalize_rows(np.array(build_simplex_lattice(m, divisions), np.float32))

    def init(self, key: Key, mean: Params) -> RVEAState:
        return self.from_members(key, tree.broadcast(mean, self.population_size), mean)

    def from_members(self, key: Key, members: Params, mean: Params) -> RVEAState:
        """Return a state whose first generation is the given individuals, leaves [n, ...]."""
        members = perturb_members(key, members, self.initial_std)
        directions = jnp.asarray(self.lattice_directions)
        nobody = jnp.full(directions.shape, objectives.WORST_FITNESS, jnp.float32)
        return RVEAState(tree.broadcast(mean, len(directions)), nobody, directions, members, jnp.int32(0))

    def tell(
        self,
        key: Key,
        genomes: Params,
        fitness: Float[Array, "n m"],
        state: RVEAState,
    ) -> tuple[RVEAState, Metrics]:
        key_parents, *keys = jax.random.split(key, 4)
        members = jnp.concatenate([flatten_population(state.parents), flatten_population(genomes)])
        fitness = jnp.concatenate([state.fitness, objectives.sanitize_objectives(fitness)])
        part = jnp.minimum(state.generation / self.generations, 1.0)
        chosen, there = select_by_direction(fitness, state.directions, fitness.shape[1] * part**self.alpha)
        members, fitness = members[chosen], jnp.where(there[:, None], fitness[chosen], objectives.WORST_FITNESS)
        generation = state.generation + 1
        adapts = generation % -(-self.generations // self.adaptations) == 0
        directions = jnp.where(
            adapts & there.any(), adapt_directions(self.lattice_directions, fitness, there), state.directions
        )
        parents = members[sample_parents(key_parents, there, self.population_size + self.population_size % 2)]
        like = tree.index(genomes, 0)
        children = self.create_children(keys, parents, like)
        after = RVEAState(unflatten_population(members, like), fitness, directions, children, generation)
        return after, {"front": self.results(after).valid_mask.sum().astype(jnp.float32)}

    def results(self, state: RVEAState) -> SearchResults:
        """Return the Pareto front of the survivors."""
        there = (state.fitness > objectives.WORST_FITNESS).all(1)
        return SearchResults(
            state.parents, state.fitness, (objectives.compute_pareto_ranks(state.fitness) == 0) & there
        )


def build_simplex_lattice(m: int, divisions: int) -> list[list[int]]:
    """Return all points of m non-negative integers that sum to `divisions`.

    Source: Das & Dennis 1998, doi:10.1137/S1052623496307510.
    """
    bars = combinations(range(divisions + m - 1), m - 1)
    ends = ((-1, *places, divisions + m - 1) for places in bars)
    return [[b - a - 1 for a, b in pairwise(one)] for one in ends]


def normalize_rows(x: Any) -> Any:
    """Return the rows scaled to length 1."""
    return x / (x**2).sum(-1, keepdims=True) ** 0.5


def select_by_direction(
    fitness: Float[Array, "n m"], directions: Float[Array, "v m"], weight: Float[Array, ""]
) -> tuple[Int[Array, " v"], Bool[Array, " v"]]:
    """Return the index of the survivor of each direction, and whether it has one (equations 6 to 10).

    `weight` multiplies the angles in the penalty.
    """
    there = (fitness > objectives.WORST_FITNESS).all(1)
    best = jnp.where(there[:, None], fitness, -jnp.inf).max(0)
    cost = jnp.where(there[:, None], best - fitness, 0.0)
    length = jnp.maximum(jnp.linalg.norm(cost, axis=1), EPSILON)
    highest = jax.lax.Precision.HIGHEST
    cosines = jnp.matmul(cost / length[:, None], directions.T, precision=highest)
    own = cosines.argmax(1)
    between = jnp.matmul(directions, directions.T, precision=highest) - 3 * jnp.eye(len(directions))
    nearest = jnp.maximum(angle(between.max(1)), EPSILON)
    penalized = length * (1 + weight * angle(cosines.max(1)) / nearest[own])
    penalized = jnp.where((own[:, None] == jnp.arange(len(directions))) & there[:, None], penalized[:, None], jnp.inf)
    return penalized.argmin(0), jnp.isfinite(penalized.min(0))


def angle(cosine: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the angle with the given cosine, in radians."""
    return jnp.arccos(jnp.clip(cosine, -1, 1))


def adapt_directions(
    lattice: Float[np.ndarray, "v m"], fitness: Float[Array, "v m"], there: Bool[Array, " v"]
) -> Array:
    """Return the lattice directions scaled by the width of the front of the existing survivors (equation 11)."""
    worst = jnp.where(there[:, None], fitness, jnp.inf).min(0)
    width = jnp.where(there[:, None], fitness, -jnp.inf).max(0) - worst
    return normalize_rows(lattice * jnp.maximum(width, EPSILON))


def sample_parents(key: Key, there: Bool[Array, " v"], n: int) -> Int[Array, " n"]:
    """Sample the indices of n parents uniformly from the directions that have a survivor."""
    order, count = jnp.argsort(~there), jnp.maximum(there.sum(), 1)
    places = (jax.random.uniform(key, (n,)) * count).astype(jnp.int32)
    return order[jnp.minimum(places, count - 1)]
