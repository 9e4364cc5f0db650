"""Selection: from the fitness of a population to the parent of each member, itself where it lives on.

A parent is fitter than its child, so that members and parents form trees. NaN counts as the worst.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import Protocol, runtime_checkable

from evorl.ec.noise import integers
from evorl.ec.shaping import argsort_best_first, compete_in_pairs, sanitize_fitness
from evorl.errors import require, require_int
from evorl.types import Key


@runtime_checkable
class Selection(Protocol):
    """Who takes over from whom."""

    def check(self, size: int) -> None:
        """Raises OptionError where a population of this size has no one to replace."""
        ...

    def __call__(self, key: Key, fitness: Float[Array, " n"]) -> Int[Array, " n"]:
        """The parent of each member."""
        ...


@dataclass(frozen=True)
class Truncation:
    """The worst part of the population takes over from the best part, each from a random one of them.

    Jaderberg et al. 2017, arXiv:1711.09846, section 4.1.1, where ratio is 0.2. That part is at least one member, so
    that also of four one is replaced, and at most half of them.
    """

    ratio: float = 0.2

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 0.5, "ratio", self.ratio, "must be above 0 and at most 0.5: no one is best and worst")

    def num_replaced(self, size: int) -> int:
        """How many are replaced, at least one; rounded down but for the error of a product such as 0.29 * 100."""
        return max(1, math.floor(self.ratio * size + 1e-9))

    def check(self, size: int) -> None:
        require(size >= 2, "population.size", size, "must be at least 2, as the worst take over from the best")

    def __call__(self, key: Key, fitness: Float[Array, " n"]) -> Int[Array, " n"]:
        key_ties, key_parents = jax.random.split(key)
        anyhow = jax.random.uniform(key_ties, fitness.shape).argsort()  # so that of equals no one is always the last
        count, order = self.num_replaced(len(fitness)), anyhow[argsort_best_first(fitness[anyhow])]
        parents = order[integers(key_parents, (count,), count)]
        return jnp.arange(len(fitness)).at[order[-count:]].set(parents)


@dataclass(frozen=True)
class Tournament:
    """Each member takes over from the fittest of `rivals` random members where that is fitter than itself.

    Jaderberg et al. 2017, arXiv:1711.09846, section 4.1.1 (binary tournament: one rival).
    """

    rivals: int = 1

    def __post_init__(self) -> None:
        require_int("rivals", self.rivals)

    def check(self, size: int) -> None:
        require(
            self.rivals < size, "selection.rivals", self.rivals, f"must be below the size of the population, {size}"
        )

    def __call__(self, key: Key, fitness: Float[Array, " n"]) -> Int[Array, " n"]:
        n, fitness = len(fitness), sanitize_fitness(fitness)
        others = (jnp.arange(n)[:, None] + 1 + integers(key, (n, self.rivals), n - 1)) % n
        best = jnp.take_along_axis(others, fitness[others].argmax(1)[:, None], axis=1)[:, 0]
        return jnp.where(fitness[best] > fitness, best, jnp.arange(n))


@dataclass(frozen=True)
class Pairs:
    """Members meet in random pairs; who loses takes over from who wins (arXiv:2501.15129, section 5.2.3)."""

    def check(self, size: int) -> None:
        require(size % 2 == 0, "population.size", size, "must be even, as members compete in pairs")

    def __call__(self, key: Key, fitness: Float[Array, " n"]) -> Int[Array, " n"]:
        winner, loser = compete_in_pairs(key, fitness)
        return jnp.arange(len(fitness)).at[loser].set(winner)


@dataclass(frozen=True)
class NoSelection:
    """Everyone lives on: random search, or what PBT is measured against."""

    def check(self, size: int) -> None:
        del size

    def __call__(self, key: Key, fitness: Float[Array, " n"]) -> Int[Array, " n"]:
        del key
        return jnp.arange(len(fitness))
