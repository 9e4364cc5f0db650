"""What every profile of policies pays: a table that lives on the device and knows how sure it is."""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float


@struct.dataclass
class Payoffs:
    """Of each profile of policies what each player gets, all [players, capacity, ..., capacity], an axis for each.

    A cell that was computed and not played has the variance 0 and infinitely many episodes, one not yet filled none.
    """

    mean: Any
    variance: Any  # of one episode
    episodes: Any  # that the mean is of

    @classmethod
    def empty(cls, players: int, capacity: int) -> "Payoffs":
        """A table in which no cell is filled."""
        zeros = jnp.zeros((players,) + (capacity,) * players)
        return cls(zeros, zeros, zeros)

    @classmethod
    def expected(cls, mean: Float[Array, "players ..."]) -> "Payoffs":
        """Cells that were computed."""
        return cls(mean, jnp.zeros_like(mean), jnp.full_like(mean, jnp.inf))

    @classmethod
    def played(cls, returns: Float[Array, "episodes players ..."]) -> "Payoffs":
        """Cells of episodes, whose variance is estimated by n - 1 (0 of one episode)."""
        n, mean = returns.shape[0], returns.mean(0)
        variance = ((returns - mean) ** 2).sum(0) / max(n - 1, 1)
        return cls(mean, variance, jnp.full_like(mean, n))

    def with_cells(self, cells: "Payoffs", mask: Bool[Array, "..."]) -> "Payoffs":
        """The table with those cells of another that are in a mask [capacity, ..., capacity]."""
        parts = (self.mean, cells.mean), (self.variance, cells.variance), (self.episodes, cells.episodes)
        return Payoffs(*(jnp.where(mask, new, old) for old, new in parts))

    def combined(self, more: "Payoffs") -> "Payoffs":
        """With the episodes of another table, cell by cell (Chan et al. 1979); where that is computed, it is taken."""
        a, b = self.episodes, more.episodes
        n = a + b
        share = jnp.where(jnp.isinf(b), 1.0, b / jnp.maximum(n, 1))
        moved = more.mean - self.mean
        between = jnp.where(jnp.isinf(n), 0.0, a * share * moved**2)
        squares = between + self.variance * jnp.maximum(a - 1, 0) + more.variance * jnp.maximum(b - 1, 0)
        variance = jnp.where(jnp.isinf(n), 0.0, squares / jnp.maximum(n - 1, 1))
        return Payoffs(jnp.where(share == 1, more.mean, self.mean + share * moved), variance, n)

    @property
    def errors(self) -> Float[Array, "players ..."]:
        """The standard error of each mean; infinite of less than two episodes, 0 where it was computed."""
        return jnp.where(self.episodes > 1, jnp.sqrt(self.variance / jnp.maximum(self.episodes, 1)), jnp.inf)
