"""Payoff table of all profiles, stored on the device, with the uncertainty of each payoff."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl.leagues.meta_games import compute_profile_mask


@struct.dataclass
class Payoffs:
    """Payoff of each player in each profile of policies, with its variance and the number of episodes.

    All arrays have the shape [players, capacity, ..., capacity], with one axis of policies for each player. A
    payoff that was computed exactly has variance 0 and infinitely many episodes. An empty cell has 0
    episodes.

    Args:
        mean: Mean payoffs.
        variance: Variance of the payoff between episodes.
        episodes: Number of episodes.
        sum_variance: Variance of the sum of all players' payoffs between episodes, the same for each player.
    """

    mean: Float[Array, "players ..."]
    variance: Float[Array, "players ..."]
    episodes: Float[Array, "players ..."]
    sum_variance: Float[Array, "players ..."]

    @classmethod
    def empty(cls, players: int, capacity: int) -> "Payoffs":
        """Return a table in which no cell is filled.

        Args:
            players: Number of players.
            capacity: Maximum number of policies of each player.
        """
        zeros = jnp.zeros((players,) + (capacity,) * players)
        return cls(zeros, zeros, zeros, zeros)

    @classmethod
    def from_expected(cls, mean: Float[Array, "players ..."]) -> "Payoffs":
        """Return a table of payoffs that were computed exactly.

        Args:
            mean: Expected payoffs, shape [players, ...].
        """
        return cls(mean, jnp.zeros_like(mean), jnp.full_like(mean, jnp.inf), jnp.zeros_like(mean))

    @classmethod
    def from_returns(cls, returns: Float[Array, "episodes ..."], axis: int = 1) -> "Payoffs":
        """Return a table of payoffs that are estimated from the returns of n episodes.

        The variances are estimated with n - 1; they are 0 for a single episode.

        Args:
            returns: Returns, shape [episodes, ...].
            axis: Axis of the players in `returns`.
        """
        n, mean = returns.shape[0], returns.mean(0)
        apart = returns - mean
        variance, of_sum = ((x**2).sum(0) / max(n - 1, 1) for x in (apart, apart.sum(axis, keepdims=True)))
        wide = jnp.broadcast_to(of_sum, mean.shape)
        return cls(mean, variance, jnp.full_like(mean, n), wide)

    def with_cells(self, cells: "Payoffs", mask: Bool[Array, "..."]) -> "Payoffs":
        """Return the table with some cells of another table.

        Args:
            cells: The other table.
            mask: Mask of the profiles whose cells are taken from it, shape [capacity, ..., capacity].
        """
        return jax.tree.map(lambda new, old: jnp.where(mask, new, old), cells, self)

    def with_policy(
        self, player: int, policy: Int[Array, ""], cells: "Payoffs", filled: Bool[Array, " capacity"]
    ) -> "Payoffs":
        """Return the table with the cells of one policy of a player, against the filled policies of all others.

        Args:
            player: Player.
            policy: Index of its policy.
            cells: Cells of the policy, with the shape of this table, but 1 on the axis of the player.
            filled: Mask of the policies of the other players.
        """
        n, axis = self.mean.ndim - 1, player + 1
        ones = jnp.ones(1, bool)
        mask = compute_profile_mask([ones if other == player else filled for other in range(n)])

        def write(old: Array, new: Array) -> Array:
            before = jax.lax.dynamic_slice_in_dim(old, policy, 1, axis)
            return jax.lax.dynamic_update_slice_in_dim(old, jnp.where(mask, new, before), policy, axis)

        return jax.tree.map(write, self, cells)

    def combine(self, more: "Payoffs") -> "Payoffs":
        """Return the table with the episodes of another one added, cell by cell (Chan et al. 1979).

        A cell of the other table that was computed exactly replaces the cell of this one.

        Args:
            more: The other table.
        """
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
        """Return the standard error of each mean: infinite for fewer than two episodes, 0 if computed exactly."""
        return jnp.where(self.episodes > 1, jnp.sqrt(self.variance / jnp.maximum(self.episodes, 1)), jnp.inf)
