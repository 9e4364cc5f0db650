"""Unstructured archive, for descriptor spaces whose bounds are unknown."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl import tree
from evorl.ec.archives import Elites, InsertionResult, create_elites, is_finite, write_elites
from evorl.errors import require, require_int
from evorl.types import Params, QDEvaluation


@dataclass(frozen=True)
class UnstructuredArchive:
    """Archive without cells: its elites are more than `distance` from each other.

    Genomes are inserted sequentially. A genome that is farther than `distance` from all elites takes a free
    place. A genome that is near exactly one elite, and fitter, replaces it. All others are rejected, and so
    are new ones if the archive is full. The insertion result compares each genome with the archive at the
    time of its insertion.

    Args:
        distance: Minimum distance between the descriptors of two elites.
        capacity: Maximum number of elites.
        num_descriptors: Length of a behavior descriptor.

    Source: Cully & Demiris 2018, arXiv:1708.09251, section III.
    """

    distance: float = 0.05
    capacity: int = 1024
    num_descriptors: int = 2

    def __post_init__(self) -> None:
        require(self.distance > 0, "distance", self.distance, "must be above 0")
        require_int("capacity", self.capacity)
        require_int("num_descriptors", self.num_descriptors)

    def empty(self, genomes: Params) -> Elites:
        return create_elites(self.capacity, genomes, self.num_descriptors, -float("inf"))

    def add(self, elites: Elites, genomes: Params, quality: QDEvaluation, rate: Any) -> tuple[Elites, InsertionResult]:
        """Insert genomes sequentially; the threshold of an elite is its fitness, and `rate` is ignored."""
        del rate
        number, near = jnp.arange(self.capacity), self.distance**2
        sound = is_finite(quality) & tree.find_finite_rows(genomes)

        def enter(held: Any, one: Any) -> tuple[Any, tuple[Array, InsertionResult]]:
            fitness, descriptor, filled = held
            own, kind, counts = one
            square: Float[Array, " capacity"] = jnp.where(filled, ((descriptor - kind) ** 2).sum(-1), jnp.inf)
            least = square.min()
            nearest = jnp.where(square <= least, number, self.capacity - 1).min()
            alone = jnp.where(number == nearest, jnp.inf, square).min() > near
            new, gain = counts & (least > near), own - jnp.where(least > near, 0, fitness[nearest])
            better = counts & ~new & alone & (gain > 0)
            place = jnp.where(new, filled.sum(), jnp.where(better, nearest, self.capacity))
            put = lambda x, value: x.at[place].set(value, mode="drop")  # noqa: E731
            held = put(fitness, own), put(descriptor, kind), put(filled, True)
            entered = place < self.capacity
            return held, (place, InsertionResult(new, entered, jnp.where(counts, gain, -jnp.inf)))

        begin = elites.fitness, elites.descriptor, elites.filled
        _, (place, entry) = jax.lax.scan(enter, begin, (quality.fitness, quality.descriptor, sound))
        order = jnp.arange(len(place))
        lost = (place == self.capacity) | ((place[:, None] == place) & (order[:, None] < order)).any(1)
        to = jnp.where(lost, self.capacity + order, place)  # distinct, as unique indices are required
        elites = write_elites(elites, to, genomes, quality)
        thresholds = elites.threshold.at[to].set(quality.fitness, mode="drop", unique_indices=True)
        return replace(elites, threshold=thresholds), entry
