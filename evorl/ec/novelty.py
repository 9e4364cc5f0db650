"""Novelty search: what was not seen before counts, alone or beside fitness."""

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
    archive: Float[Array, "capacity d"]  # descriptors of the past
    count: Int[Array, ""]  # how many were ever kept
    best: Params  # of the highest fitness so far
    best_fitness: Float[Array, ""]


@part
class Novelty(Evolver):
    """An evolver that is told how far a member's descriptor is from its nearest (Lehman & Stanley 2011).

    Source: doi:10.1162/EVCO_a_00025. Novelty is the mean distance to the `neighbours` nearest of this generation and of
    the archive, which keeps the descriptors of the `kept` most novel members of each generation, the last `capacity` of
    them. Of evolution strategies whose archive is of their centers see NoveltyES.
    descriptors are names as for MapElites. The solution is the member of the highest fitness so far.
    """

    evolver: Evolver = field(default_factory=GA)
    descriptors: Sequence[str] = ("descriptor",)
    num_descriptors: int = 2
    neighbours: int = 15
    kept: int = 4
    capacity: int = 1000
    share: Number = number(1.0, 0, 1, "of novelty in what the evolver is told, the rest is fitness; as ranks")

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptors", tuple(self.descriptors))
        require(len(self.descriptors) > 0, "descriptors", [], "must name at least one")
        n = self.evolver.population_size
        require_int("num_descriptors", self.num_descriptors)
        require(
            1 <= self.neighbours < n, "neighbours", self.neighbours, f"must be from 1 to population_size - 1, {n - 1}"
        )
        require(0 <= self.kept <= n, "kept", self.kept, f"must be from 0 to population_size, {n}")
        require(self.capacity >= max(self.kept, 1), "capacity", self.capacity, f"must be at least kept, {self.kept}")

    @property
    def population_size(self) -> int:
        return self.evolver.population_size

    def compute_fitness(self, means: dict[str, Array]) -> QDEvaluation:
        return QDEvaluation(means["return"], concatenate_descriptors(self.descriptors, means, self.num_descriptors))

    def init(self, key: Key, mean: Params) -> NoveltyState:
        return self._init_state(self.evolver.init(key, mean), mean)

    def from_members(self, key: Key, members: Params, mean: Params) -> NoveltyState:
        """The first generation is members, leaves [n, ...], where the evolver takes them."""
        return self._init_state(self.evolver.from_members(key, members, mean), mean)

    def _init_state(self, evolver: Any, mean: Params) -> NoveltyState:
        seen = jnp.zeros((self.capacity, self.num_descriptors))
        return NoveltyState(evolver, seen, jnp.int32(0), mean, jnp.float32(-jnp.inf))

    def ask(self, key: Key, state: NoveltyState) -> tuple[Any, NoveltyState]:
        """Genomes as the evolver has them."""
        genomes, evolver = self.evolver.ask(key, state.evolver)
        return genomes, state if evolver is state.evolver else replace(state, evolver=evolver)

    def to_params(self, state: NoveltyState, genome: Any) -> Params:
        return self.evolver.to_params(state.evolver, genome)

    def tell(self, key: Key, genomes: Any, fitness: QDEvaluation, state: NoveltyState) -> tuple[NoveltyState, Metrics]:
        novelty = jnp.where(is_finite(fitness), self.compute_novelty(fitness.descriptor, state), jnp.nan)
        share = self.share
        worth = share * center_ranks(novelty) + (1 - share) * center_ranks(fitness.fitness)
        worth = jnp.where(jnp.isnan(novelty), jnp.nan, worth)
        evolver, metrics = self.evolver.tell(key, genomes, worth, state.evolver)

        most = jax.lax.top_k(sanitize_fitness(novelty), self.kept)[1]
        seen, count = append_to_archive(
            state.archive, state.count, fitness.descriptor[most], jnp.isfinite(novelty[most])
        )
        to_params = lambda genome: self.evolver.to_params(state.evolver, genome)  # noqa: E731
        best = update_best(genomes, fitness.fitness, to_params, (state.best, state.best_fitness))
        return NoveltyState(evolver, seen, count, *best), metrics | {"novelty": jnp.nanmean(novelty)}

    def compute_novelty(self, descriptor: Float[Array, "n d"], state: NoveltyState) -> Float[Array, " n"]:
        """The mean distance from the nearest others, of which there are fewer at first."""
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
    """The mean distance from the nearest others that count, of which there may be fewer; 0 where there is none."""
    square = ((descriptor[:, None] - others) ** 2).sum(-1)
    nearest = -jax.lax.top_k(jnp.where(counts & jnp.isfinite(square), -square, -jnp.inf), neighbours)[0]
    there = jnp.isfinite(nearest)
    return jnp.where(there, jnp.sqrt(jnp.where(there, nearest, 0)), 0).sum(1) / jnp.maximum(there.sum(1), 1)


def append_to_archive(
    seen: Float[Array, "capacity d"], count: Int[Array, ""], descriptor: Float[Array, "n d"], there: Bool[Array, " n"]
) -> tuple[Float[Array, "capacity d"], Int[Array, ""]]:
    """The descriptors of the past with those of n more that are there, the oldest replaced; and how many ever were."""
    place = jnp.where(there, (count + jnp.cumsum(there) - 1) % len(seen), len(seen))
    return seen.at[place].set(descriptor, mode="drop"), count + there.sum()


def update_best(
    genomes: Any, fitness: Float[Array, " n"], to_params: Callable[[Any], Params], best: tuple[Params, Array]
) -> tuple[Params, Array]:
    """The parameters and the fitness of the best of n genomes, leaves [n, ...], or of who was the best before."""
    first = sanitize_fitness(fitness).argmax()
    now = to_params(tree.index(genomes, first)), fitness[first]
    return tree.select(fitness[first] > best[1], now, best)
