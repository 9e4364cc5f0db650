"""Selection in population-based training: the parent of each member, computed from the fitness of the population.

A member that is not replaced is its own parent. Any other parent is fitter than its child, so that members
and parents form trees. NaN counts as the worst fitness.
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
    """Protocol of selection, which chooses the members that are replaced by copies of others."""

    def check(self, size: int) -> None:
        """Check that the selection works for a population of this size.

        Args:
            size: Number of members.

        Raises:
            OptionError: If it does not.
        """
        ...

    def __call__(self, key: Key, fitness: Float[Array, " n"]) -> Int[Array, " n"]:
        """Return the index of the parent of each member, shape [n].

        Args:
            key: Random key.
            fitness: Fitness of the members, shape [n].
        """
        ...


@dataclass(frozen=True)
class Truncation:
    """Truncation selection: each of the worst members is replaced by a copy of a random one of the best.

    The number of replaced members is ratio * size, rounded down, but at least one: one of a population of
    four is replaced with the default ratio.

    Args:
        ratio: Fraction of the population that is replaced, and fraction that is copied; at most 0.5.

    Source: Jaderberg et al. 2017, arXiv:1711.09846, section 4.1.1, where the ratio is 0.2.
    """

    ratio: float = 0.2

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 0.5, "ratio", self.ratio, "must be above 0 and at most 0.5")

    def num_replaced(self, size: int) -> int:
        """Return the number of members that are replaced: ratio * size, rounded down, at least 1.

        A product that is just below an integer because of rounding errors, such as 0.29 * 100, counts as this
        integer.

        Args:
            size: Number of members.
        """
        return max(1, math.floor(self.ratio * size + 1e-9))

    def check(self, size: int) -> None:
        """Raise OptionError if the population has fewer than 2 members."""
        require(size >= 2, "population.size", size, "must be at least 2, because the worst members copy the best")

    def __call__(self, key: Key, fitness: Float[Array, " n"]) -> Int[Array, " n"]:
        key_ties, key_parents = jax.random.split(key)
        anyhow = jax.random.uniform(key_ties, fitness.shape).argsort()  # random order of ties
        count, order = self.num_replaced(len(fitness)), anyhow[argsort_best_first(fitness[anyhow])]
        parents = order[integers(key_parents, (count,), count)]
        return jnp.arange(len(fitness)).at[order[-count:]].set(parents)


@dataclass(frozen=True)
class Tournament:
    """Tournament selection: a member is replaced by the fittest of its random rivals if that one is fitter.

    Args:
        rivals: Number of random rivals of each member.

    Source: Jaderberg et al. 2017, arXiv:1711.09846, section 4.1.1 (binary tournament: one rival).
    """

    rivals: int = 1

    def __post_init__(self) -> None:
        require_int("rivals", self.rivals)

    def check(self, size: int) -> None:
        """Raise OptionError if the population does not have more members than `rivals`."""
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
    """Selection in random pairs: the loser is replaced by a copy of the winner.

    Source: EvoRL, arXiv:2501.15129, section 5.2.3.
    """

    def check(self, size: int) -> None:
        """Raise OptionError if the number of members is odd."""
        require(size % 2 == 0, "population.size", size, "must be even, as members compete in pairs")

    def __call__(self, key: Key, fitness: Float[Array, " n"]) -> Int[Array, " n"]:
        winner, loser = compete_in_pairs(key, fitness)
        return jnp.arange(len(fitness)).at[loser].set(winner)


@dataclass(frozen=True)
class NoSelection:
    """No selection: all members survive, as in random search or as a baseline for PBT."""

    def check(self, size: int) -> None:
        """Accept a population of any size."""
        del size

    def __call__(self, key: Key, fitness: Float[Array, " n"]) -> Int[Array, " n"]:
        del key
        return jnp.arange(len(fitness))
