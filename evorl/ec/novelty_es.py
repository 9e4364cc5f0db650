"""Evolution strategies that look for what was not seen before, from several centers."""

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
    centers: State  # of the evolver, leaves [num_centers, ...]
    center_index: Int[Array, ""]  # the center whose members were asked for
    archive_pending: Bool[Array, " num_centers"]  # whether its descriptor is not in the archive yet
    novelty: Float[Array, " num_centers"]  # as they last played
    archive: Float[Array, "capacity d"]  # descriptors of centers, as they moved
    count: Int[Array, ""]  # how many there ever were
    best: Params  # of the highest fitness so far
    best_fitness: Float[Array, ""]


@part
class NoveltyES(Evolver):
    """NSR-ES, with a share of 1 NS-ES: several centers, of which one moves in a generation (Conti et al. 2018).

    Source: arXiv:1712.06560, algorithms 1 and 2. The more novel a center, the likelier it is chosen; its evolver is
    told of its members by ranks of novelty and of fitness. Novelty is the mean distance to the `neighbours` nearest of
    the archive, in which is the descriptor of every center after each of its moves, the last `capacity` of them. All
    centers play beside the members, as members do: the one that has just moved is chosen by its descriptor before.
    descriptors are names as for MapElites. The first centers are initialized apart. The solution is the member of the
    highest fitness so far.
    """

    evolver: Evolver = field(default_factory=OpenES)
    num_centers: int = 5
    descriptors: Sequence[str] = ("descriptor",)
    num_descriptors: int = 2
    neighbours: int = 10
    capacity: int = 1000
    share: Number = number(0.5, 0, 1, "of novelty in what the evolver is told, the rest is fitness; as ranks")

    takes_params = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptors", tuple(self.descriptors))
        require(len(self.descriptors) > 0, "descriptors", [], "must name at least one")
        for name in ("num_centers", "num_descriptors", "neighbours"):
            require_int(name, getattr(self, name))
        least = max(self.num_centers, self.neighbours)
        require(self.capacity >= least, "capacity", self.capacity, f"must be at least {least}")
        search.require_takes_params(self.evolver, "evolver", "the members of one center")

    @property
    def population_size(self) -> int:
        return self.evolver.population_size + self.num_centers

    def compute_fitness(self, means: dict[str, Array]) -> QDEvaluation:
        return QDEvaluation(means["return"], concatenate_descriptors(self.descriptors, means, self.num_descriptors))

    def init(self, key: Key, mean: Params) -> NoveltyESState:
        return self.from_members(key, tree.broadcast(mean, self.num_centers), mean)

    def from_members(self, key: Key, members: Params, mean: Params) -> NoveltyESState:
        """The centers are the first of members, leaves [n, ...]."""
        m = self.num_centers
        means, keys = tree.index(members, slice(m)), jax.random.split(key, m)
        centers = jax.vmap(self.evolver.init)(keys, means)
        seen, none = jnp.zeros((self.capacity, self.num_descriptors)), jnp.zeros(m)
        return NoveltyESState(centers, jnp.int32(0), none == 0, none, seen, jnp.int32(0), mean, jnp.float32(-jnp.inf))

    def ask(self, key: Key, state: NoveltyESState) -> tuple[Params, NoveltyESState]:
        """Members of one center, and all centers, as parameters, leaves [n, ...]."""
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
        share, members = self.share, tree.index(genomes, slice(n))
        worth = share * center_ranks(novelty[:n]) + (1 - share) * center_ranks(fitness.fitness[:n])
        worth = jnp.where(jnp.isnan(novelty[:n]), jnp.nan, worth)
        center = tree.index(state.centers, state.center_index)
        told, metrics = search.tell(self.evolver, key, members, worth, center)

        best = update_best(genomes, fitness.fitness, lambda params: params, (state.best, state.best_fitness))
        state = NoveltyESState(
            tree.set_row(state.centers, state.center_index, told),
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
        """The mean distance from the nearest in the archive, of which there are fewer at first."""
        there = jnp.broadcast_to(jnp.arange(self.capacity) < count, (len(descriptor), self.capacity))
        return mean_neighbor_distance(descriptor, seen, there, self.neighbours)

    def solution(self, state: NoveltyESState) -> Params:
        return state.best
