"""An archive without cells, for descriptors whose bounds nobody knows."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.ec.archives import Elites, InsertionResult, create_elites, is_finite, write_elites
from evorl.errors import require, require_int
from evorl.types import Params, QDEvaluation


@dataclass(frozen=True)
class UnstructuredArchive:
    """Elites that are farther than `distance` from each other, as many as there is room for (Cully & Demiris 2018).

    Source: arXiv:1708.09251, section III. Genomes come one after another: one that is new to all takes a free place;
    one that is near a single elite, and fitter, takes its place; others are left out, and so are new ones in a full
    archive. What entered, and by how much, is against the archive as it was by then.
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
        """Thresholds are the elites' fitness, whatever the rate."""
        del rate
        number, near = jnp.arange(self.capacity), self.distance**2

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
        _, (place, entry) = jax.lax.scan(enter, begin, (quality.fitness, quality.descriptor, is_finite(quality)))
        order = jnp.arange(len(place))
        lost = (place == self.capacity) | ((place[:, None] == place) & (order[:, None] < order)).any(1)
        to = jnp.where(lost, self.capacity + order, place)  # distinct, so that indices are unique
        elites = write_elites(elites, to, genomes, quality)
        return replace(elites, threshold=jnp.where(elites.filled, elites.fitness, -jnp.inf)), entry
