"""What every profile of policies pays: a table that lives on the device and knows how sure it is."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float


@struct.dataclass
class Payoffs:
    """Of each profile of policies what each player gets, all [players, capacity, ..., capacity], an axis for each.

    A cell that was computed and not played has the variance 0 and infinitely many episodes, one not yet filled none.
    """

    mean: Float[Array, "players ..."]
    variance: Float[Array, "players ..."]  # of one episode
    episodes: Float[Array, "players ..."]  # that the mean is of
    # of what all players get together in one episode, the same for each of them
    sum_variance: Float[Array, "players ..."]

    @classmethod
    def empty(cls, players: int, capacity: int) -> "Payoffs":
        """A table in which no cell is filled."""
        zeros = jnp.zeros((players,) + (capacity,) * players)
        return cls(zeros, zeros, zeros, zeros)

    @classmethod
    def from_expected(cls, mean: Float[Array, "players ..."]) -> "Payoffs":
        """Cells that were computed."""
        return cls(mean, jnp.zeros_like(mean), jnp.full_like(mean, jnp.inf), jnp.zeros_like(mean))

    @classmethod
    def from_returns(cls, returns: Float[Array, "episodes ..."], axis: int = 1) -> "Payoffs":
        """Cells of episodes, whose variance is estimated by n - 1 (0 of one episode); axis is that of the players."""
        n, mean = returns.shape[0], returns.mean(0)
        apart = returns - mean
        variance, of_sum = ((x**2).sum(0) / max(n - 1, 1) for x in (apart, apart.sum(axis, keepdims=True)))
        wide = jnp.broadcast_to(of_sum, mean.shape)
        return cls(mean, variance, jnp.full_like(mean, n), wide)

    def with_cells(self, cells: "Payoffs", mask: Bool[Array, "..."]) -> "Payoffs":
        """The table with those cells of another that are in a mask [capacity, ..., capacity]."""
        return jax.tree.map(lambda new, old: jnp.where(mask, new, old), cells, self)

    def combine(self, more: "Payoffs") -> "Payoffs":
        """With the episodes of another table, cell by cell (Chan et al. 1979); where that is computed, it is taken."""
        a, b = self.episodes, more.episodes
        n = a + b
        share = jnp.where(jnp.isinf(b), 1.0, b / jnp.maximum(n, 1))
        moved = more.mean - self.mean

        def pool_variance(moved: Array, before: Array, new: Array) -> Array:
            between = jnp.where(jnp.isinf(n), 0.0, a * share * moved**2)
            squares = between + before * jnp.maximum(a - 1, 0) + new * jnp.maximum(b - 1, 0)
            return jnp.where(jnp.isinf(n), 0.0, squares / jnp.maximum(n - 1, 1))

        mean = jnp.where(share == 1, more.mean, self.mean + share * moved)
        variance = pool_variance(moved, self.variance, more.variance)
        return Payoffs(mean, variance, n, pool_variance(moved.sum(0), self.sum_variance, more.sum_variance))

    @property
    def standard_errors(self) -> Float[Array, "players ..."]:
        """The standard error of each mean; infinite of less than two episodes, 0 where it was computed."""
        return jnp.where(self.episodes > 1, jnp.sqrt(self.variance / jnp.maximum(self.episodes, 1)), jnp.inf)
