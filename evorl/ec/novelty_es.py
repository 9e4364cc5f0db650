"""Novelty search with evolution strategies around several centers (NS-ES and NSR-ES)."""

from collections.abc import Sequence
from dataclasses import field, replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl import tree
from evorl.ec import search
from evorl.ec.archives import concatenate_descriptors, is_finite
from evorl.ec.novelty import append_to_archive, mean_neighbor_distance, update_best
from evorl.ec.openes import OpenES
from evorl.ec.shaping import center_ranks
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.types import Evolver, Key, Metrics, Params, QDEvaluation, State


@struct.dataclass
class NoveltyESState:
    centers: State  # states of the inner evolver, leaves [num_centers, ...]
    center_index: Int[Array, ""]  # the center of the current generation
    archive_pending: Bool[Array, " num_centers"]  # whether its current descriptor is not archived yet
    novelty: Float[Array, " num_centers"]  # of the centers, from their last evaluation
    archive: Float[Array, "capacity d"]  # descriptors of the centers after each move
    count: Int[Array, ""]  # number of descriptors ever archived
    best: Params  # parameters with the highest fitness so far
    best_fitness: Float[Array, ""]


@part
class NoveltyES(Evolver):
    """NSR-ES: evolution strategies around several centers that maximize a mean of novelty and fitness.

    With a novelty_weight of 1 it is NS-ES, which maximizes novelty alone. In each generation, one center moves. It is
    chosen with a probability proportional to its novelty. Its evolver maximizes the weighted sum of the
    centered ranks of novelty and fitness.

    Novelty is the mean distance to the nearest descriptors of an archive. The archive holds the descriptor of
    each center after each of its moves; once it is full, the oldest descriptors are overwritten. All centers
    are evaluated in each generation together with the individuals. A center that has just moved is therefore
    still represented by its descriptor before the move when the next center is chosen.

    The initial centers are initialized independently. The solution is the individual with the highest fitness
    so far.

    Args:
        evolver: Evolution strategy around each center.
        num_centers: Number of centers.
        descriptors: Names of the episode statistics of the environment, scalars or vectors, that are
            concatenated to the behavior descriptor, as for MapElites.
        num_descriptors: Length of the behavior descriptor.
        neighbours: Number of nearest neighbors whose mean distance is the novelty.
        capacity: Maximum number of archived descriptors.

    Source: Conti et al. 2018, arXiv:1712.06560, algorithms 1 and 2.
    """

    evolver: Evolver = field(default_factory=OpenES)
    num_centers: int = 5
    descriptors: Sequence[str] = ("descriptor",)
    num_descriptors: int = 2
    neighbours: int = 10
    capacity: int = 1000
    novelty_weight: Number = number(
        0.5, 0, 1, "weight of novelty; that of fitness is 1 minus it; both as centered ranks"
    )

    takes_params = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptors", tuple(self.descriptors))
        require(len(self.descriptors) > 0, "descriptors", [], "must name at least one")
        for name in ("num_centers", "num_descriptors", "neighbours"):
            require_int(name, getattr(self, name))
        least = max(self.num_centers, self.neighbours)
        require(self.capacity >= least, "capacity", self.capacity, f"must be at least {least}")
        search.require_takes_params(self.evolver, "evolver", "the individuals of a single center")

    @property
    def population_size(self) -> int:
        """Return the number of individuals of the inner evolver plus the number of centers."""
        return self.evolver.population_size + self.num_centers

    def compute_fitness(self, means: dict[str, Array]) -> QDEvaluation:
        return QDEvaluation(means["return"], concatenate_descriptors(self.descriptors, means, self.num_descriptors))

    @property
    def keeps_best(self) -> bool:
        return True

    def init(self, key: Key, mean: Params) -> NoveltyESState:
        return self.from_members(key, tree.broadcast(mean, self.num_centers), mean)

    def from_members(self, key: Key, members: Params, mean: Params) -> NoveltyESState:
        """Return a state whose centers are the first of the given individuals, leaves [n, ...]."""
        m = self.num_centers
        means, keys = tree.index(members, slice(m)), jax.random.split(key, m)
        centers = jax.vmap(self.evolver.init)(keys, means)
        seen, none = jnp.zeros((self.capacity, self.num_descriptors)), jnp.zeros(m)
        return NoveltyESState(centers, jnp.int32(0), none == 0, none, seen, jnp.int32(0), mean, jnp.float32(-jnp.inf))

    def ask(self, key: Key, state: NoveltyESState) -> tuple[Params, NoveltyESState]:
        """Return the individuals of one center, followed by all centers, as parameters, leaves [n, ...]."""
        key_choice, key = jax.random.split(key)
        chances = jnp.where(state.novelty.sum() > 0, state.novelty, 1.0)
        chosen = jax.random.categorical(key_choice, jnp.log(chances)).astype(jnp.int32)
        before = tree.index(state.centers, chosen)
        members, _, after = search.ask(self.evolver, key, before)
        centers = tree.set_row(state.centers, chosen, search.merge_asked_state(after, before))
        both = (members, jax.vmap(self.evolver.solution)(centers))
        return jax.tree.map(lambda *x: jnp.concatenate(x), *both), replace(state, centers=centers, center_index=chosen)

    def tell(
        self, key: Key, genomes: Params, fitness: QDEvaluation, state: NoveltyESState
    ) -> tuple[NoveltyESState, Metrics]:
        n = self.evolver.population_size
        of_centers = fitness.descriptor[n:]
        seen, count = append_to_archive(
            state.archive, state.count, of_centers, state.archive_pending & is_finite(fitness)[n:]
        )
        novelty = jnp.where(is_finite(fitness), self.compute_novelty(fitness.descriptor, seen, count), jnp.nan)
        weight, members = self.novelty_weight, tree.index(genomes, slice(n))
        worth = weight * center_ranks(novelty[:n]) + (1 - weight) * center_ranks(fitness.fitness[:n])
        worth = jnp.where(jnp.isnan(novelty[:n]), jnp.nan, worth)
        center = tree.index(state.centers, state.center_index)
        center, metrics = search.tell(self.evolver, key, members, worth, center)

        best = update_best(genomes, fitness.fitness, lambda params: params, (state.best, state.best_fitness))
        state = NoveltyESState(
            tree.set_row(state.centers, state.center_index, center),
            state.center_index,
            jnp.arange(self.num_centers) == state.center_index,
            jnp.nan_to_num(novelty[n:]),
            seen,
            count,
            *best,
        )
        return state, metrics | {"novelty": jnp.nanmean(novelty[:n]), "novelty/centers": state.novelty.mean()}

    def compute_novelty(
        self, descriptor: Float[Array, "n d"], seen: Float[Array, "capacity d"], count: Array
    ) -> Float[Array, " n"]:
        """Return the mean distance of each descriptor to its `neighbours` nearest descriptors in the archive.

        Args:
            descriptor: Behavior descriptors, shape [n, d].
            seen: Archived descriptors, shape [capacity, d].
            count: Number of descriptors archived so far, which may exceed the capacity; the first min(count,
                capacity) rows of `seen` are used.

        Returns:
            Novelty, shape [n]: the mean Euclidean distance.
        """
        there = jnp.broadcast_to(jnp.arange(self.capacity) < count, (len(descriptor), self.capacity))
        return mean_neighbor_distance(descriptor, seen, there, self.neighbours)

    def solution(self, state: NoveltyESState) -> Params:
        return state.best
