"""Novelty search: selection for behavior that differs from earlier behavior, alone or combined with fitness."""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl import tree
from evorl.ec.archives import concatenate_descriptors, is_finite
from evorl.ec.genetic import GA
from evorl.ec.shaping import center_ranks, sanitize_fitness
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.types import Evolver, Key, Metrics, Params, QDEvaluation, State


@struct.dataclass
class NoveltyState:
    evolver: State
    archive: Float[Array, "capacity d"]  # archived descriptors
    count: Int[Array, ""]  # number of descriptors ever archived
    best: Params  # parameters with the highest fitness so far
    best_fitness: Float[Array, ""]


@part
class Novelty(Evolver):
    """Novelty search: an evolver maximizes novelty, alone or combined with fitness.

    The novelty of an individual is the mean distance from its behavior descriptor to the nearest descriptors
    of the other individuals and of an archive. The archive keeps the most novel descriptors of each
    generation; once it is full, the oldest ones are overwritten. The solution is the individual with the
    highest fitness so far. For evolution strategies that archive the descriptors of their centers, see
    NoveltyES.

    Args:
        evolver: Evolver that maximizes the combination of novelty and fitness.
        descriptors: Names of the episode statistics of the environment, scalars or vectors, that are
            concatenated to the behavior descriptor, as for MapElites.
        num_descriptors: Length of the behavior descriptor.
        neighbours: Number of nearest neighbors whose mean distance is the novelty.
        num_archived: Number of the most novel individuals whose descriptors are archived in each generation.
        capacity: Maximum number of archived descriptors.

    Source: Lehman & Stanley 2011, doi:10.1162/EVCO_a_00025.
    """

    evolver: Evolver = field(default_factory=GA)
    descriptors: Sequence[str] = ("descriptor",)
    num_descriptors: int = 2
    neighbours: int = 15
    num_archived: int = 4
    capacity: int = 1000
    novelty_weight: Number = number(
        1.0, 0, 1, "weight of novelty; that of fitness is 1 minus it; both as centered ranks"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptors", tuple(self.descriptors))
        require(len(self.descriptors) > 0, "descriptors", [], "must name at least one")
        n = self.evolver.population_size
        require_int("num_descriptors", self.num_descriptors)
        require(
            1 <= self.neighbours < n, "neighbours", self.neighbours, f"must be from 1 to population_size - 1, {n - 1}"
        )
        require(
            0 <= self.num_archived <= n, "num_archived", self.num_archived, f"must be from 0 to population_size, {n}"
        )
        require(
            self.capacity >= max(self.num_archived, 1),
            "capacity",
            self.capacity,
            f"must be at least num_archived, {self.num_archived}",
        )

    @property
    def population_size(self) -> int:
        """Return the number of individuals per generation, as set in the inner evolver."""
        return self.evolver.population_size

    def compute_fitness(self, means: dict[str, Array]) -> QDEvaluation:
        return QDEvaluation(means["return"], concatenate_descriptors(self.descriptors, means, self.num_descriptors))

    @property
    def keeps_best(self) -> bool:
        return True

    def init(self, key: Key, mean: Params) -> NoveltyState:
        return self._init_state(self.evolver.init(key, mean), mean)

    def from_members(self, key: Key, members: Params, mean: Params) -> NoveltyState:
        """Return a state whose first generation is the given individuals, leaves [n, ...].

        An inner evolver that does not begin with members ignores them.
        """
        return self._init_state(self.evolver.from_members(key, members, mean), mean)

    def _init_state(self, evolver: Any, mean: Params) -> NoveltyState:
        seen = jnp.zeros((self.capacity, self.num_descriptors))
        return NoveltyState(evolver, seen, jnp.int32(0), mean, jnp.float32(-jnp.inf))

    def ask(self, key: Key, state: NoveltyState) -> tuple[Any, NoveltyState]:
        """Return the genomes of the inner evolver."""
        genomes, evolver = self.evolver.ask(key, state.evolver)
        return genomes, state if evolver is state.evolver else replace(state, evolver=evolver)

    def to_params(self, state: NoveltyState, genome: Any) -> Params:
        return self.evolver.to_params(state.evolver, genome)

    def tell(self, key: Key, genomes: Any, fitness: QDEvaluation, state: NoveltyState) -> tuple[NoveltyState, Metrics]:
        novelty = jnp.where(is_finite(fitness), self.compute_novelty(fitness.descriptor, state), jnp.nan)
        weight = self.novelty_weight
        worth = weight * center_ranks(novelty) + (1 - weight) * center_ranks(fitness.fitness)
        worth = jnp.where(jnp.isnan(novelty), jnp.nan, worth)
        evolver, metrics = self.evolver.tell(key, genomes, worth, state.evolver)

        most = jax.lax.top_k(sanitize_fitness(novelty), self.num_archived)[1]
        seen, count = append_to_archive(
            state.archive, state.count, fitness.descriptor[most], jnp.isfinite(novelty[most])
        )
        to_params = lambda genome: self.evolver.to_params(state.evolver, genome)  # noqa: E731
        best = update_best(genomes, fitness.fitness, to_params, (state.best, state.best_fitness))
        return NoveltyState(evolver, seen, count, *best), metrics | {"novelty": jnp.nanmean(novelty)}

    def compute_novelty(self, descriptor: Float[Array, "n d"], state: NoveltyState) -> Float[Array, " n"]:
        """Return the mean distance to the nearest descriptors of the other individuals and of the archive.

        Args:
            descriptor: Behavior descriptors of the generation, shape [n, d].
            state: State of the search, with the archive.

        Returns:
            Novelty, shape [n].
        """
        n = len(descriptor)
        others = jnp.concatenate([descriptor, state.archive])
        place = jnp.arange(len(others))
        counts = jnp.where(place < n, place != jnp.arange(n)[:, None], place - n < state.count)
        return mean_neighbor_distance(descriptor, others, counts, self.neighbours)

    def solution(self, state: NoveltyState) -> Params:
        return state.best


def mean_neighbor_distance(
    descriptor: Float[Array, "n d"], others: Float[Array, "m d"], counts: Bool[Array, "n m"], neighbours: int
) -> Float[Array, " n"]:
    """Return the mean distance from each descriptor to its nearest neighbors among the valid others.

    `counts` masks the valid others, shape [n, m]. If there are fewer than `neighbours` of them, the mean is
    over these; it is 0 if there are none.
    """
    square = ((descriptor[:, None] - others) ** 2).sum(-1)
    nearest = -jax.lax.top_k(jnp.where(counts & jnp.isfinite(square), -square, -jnp.inf), neighbours)[0]
    there = jnp.isfinite(nearest)
    return jnp.where(there, jnp.sqrt(jnp.where(there, nearest, 0)), 0).sum(1) / jnp.maximum(there.sum(1), 1)


def append_to_archive(
    seen: Float[Array, "capacity d"], count: Int[Array, ""], descriptor: Float[Array, "n d"], there: Bool[Array, " n"]
) -> tuple[Float[Array, "capacity d"], Int[Array, ""]]:
    """Append the descriptors that are valid by the mask `there` to the ring `seen`, overwriting the oldest.

    Returns the ring and the number of descriptors ever appended.
    """
    place = jnp.where(there, (count + jnp.cumsum(there) - 1) % len(seen), len(seen))
    return seen.at[place].set(descriptor, mode="drop"), count + there.sum()


def update_best(
    genomes: Any, fitness: Float[Array, " n"], to_params: Callable[[Any], Params], best: tuple[Params, Array]
) -> tuple[Params, Array]:
    """Return the parameters and the fitness of the best of n genomes, leaves [n, ...], and of the previous best."""
    first = sanitize_fitness(fitness).argmax()
    now = to_params(tree.index(genomes, first)), fitness[first]
    return tree.select(fitness[first] > best[1], now, best)
