"""Meta-solvers, which compute mixtures of policies from their payoff table."""

from dataclasses import dataclass

import jax.numpy as jnp
from typing_extensions import Protocol, runtime_checkable

from evorl.errors import require
from evorl.leagues.meta_games import Gap, Mask, Table, Weights, normalize_weights, with_gap
from evorl.leagues.policy_prefix import compute_on_prefix, pad_policies, take_policies


@runtime_checkable
class MetaSolver(Protocol):
    """Protocol of a meta-solver, which computes mixtures of policies from a payoff table."""

    def check(self, players: int, zero_sum: bool) -> None:
        """Raise OptionError if the solver cannot solve a game.

        Args:
            players: Number of players.
            zero_sum: Whether the game is zero-sum; a game of any constant sum counts as zero-sum.
        """
        ...

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        """Compute the mixtures of a payoff table.

        Args:
            payoffs: Payoff table, shape [players, capacity, ..., capacity]. Cells of policies that do not
                exist may have any value.
            mask: Mask of the policies that exist, shape [players, capacity].

        Returns:
            The mixture of each player, shape [players, capacity], and the maximum gain of any player by
            deviating from it (0 in an equilibrium). Under jit, both are NaN if a payoff is not finite or the
            solver cannot solve the table.

        Raises:
            OptionError: If a payoff is not finite or the solver cannot solve the table, outside of jit.
        """
        ...


@runtime_checkable
class RectifyingSolver(MetaSolver, Protocol):
    """Protocol of a meta-solver that lets new policies respond to other mixtures than its weights."""

    def compute_opponent_mixtures(self, payoffs: Table, mask: Mask, weights: Weights) -> Weights:
        """Return the mixture of each player to which the new policies of the other players respond.

        Args:
            payoffs: Payoff table, shape [players, capacity, ..., capacity].
            mask: Mask of the policies that exist, shape [players, capacity].
            weights: Mixtures that the solver has computed, shape [players, capacity].
        """
        ...


def solve_meta_game(solver: MetaSolver, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
    """Return what a solver computes, from the part of the payoff table that has policies."""
    players, capacity = mask.shape

    def solve(size: int) -> tuple[Weights, Gap]:
        weights, gap = solver(take_policies(payoffs, size, players), mask[:, :size])
        return pad_policies(weights, capacity), gap

    return compute_on_prefix(mask, solve)


def require_plain_solver(option: str, solver: MetaSolver) -> None:
    """Raise OptionError if new policies respond to other mixtures than the solver's weights, as no wrapper can tell."""
    why = "rectifies the mixtures to which policies respond; it must be the meta-solver itself, not part of another"
    require(not isinstance(solver, RectifyingSolver), option, type(solver).__name__, why)


def select_opponent_mixtures(solver: MetaSolver, payoffs: Table, mask: Mask, weights: Weights) -> Weights:
    """Return the mixtures to which new policies respond: the solver's weights, or those that it derives from them."""
    if not isinstance(solver, RectifyingSolver):
        return weights
    players, capacity = mask.shape

    def derive(size: int) -> Weights:
        table = take_policies(payoffs, size, players)
        return pad_policies(solver.compute_opponent_mixtures(table, mask[:, :size], weights[:, :size]), capacity)

    return compute_on_prefix(mask, derive)


@dataclass(frozen=True)
class UniformMixture:
    """Uniform mixtures of all policies, with which PSRO is fictitious self-play (Heinrich et al. 2015)."""

    def check(self, players: int, zero_sum: bool) -> None:
        """Accept every game."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        weights = normalize_weights(jnp.ones(mask.shape), mask)
        return with_gap(payoffs, mask, weights)


@dataclass(frozen=True)
class NewestPolicySolver:
    """All weight on the newest policy of each player, with which PSRO is self-play."""

    def check(self, players: int, zero_sum: bool) -> None:
        """Accept every game."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        weights = mask_newest_policies(mask).astype(jnp.float32)
        return with_gap(payoffs, mask, weights)


@dataclass(frozen=True)
class UniformlyMixedSolver:
    """Weights of another meta-solver, mixed with uniform weights so that no policy is forgotten.

    Args:
        solver: The other meta-solver.
        uniform: Fraction of the uniform weights, from 0 to 1.
    """

    solver: MetaSolver
    uniform: float = 0.2

    def __post_init__(self) -> None:
        require(0 <= self.uniform <= 1, "uniform", self.uniform, "must be between 0 and 1")
        require_plain_solver("solver", self.solver)

    def check(self, players: int, zero_sum: bool) -> None:
        """Check the game with the other meta-solver.

        Args:
            players: Number of players.
            zero_sum: Whether the game has a constant sum.

        Raises:
            OptionError: If that meta-solver cannot solve the game.
        """
        self.solver.check(players, zero_sum)

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        weights, _ = self.solver(payoffs, mask)
        weights = (1 - self.uniform) * weights + self.uniform * normalize_weights(jnp.ones(mask.shape), mask)
        return with_gap(payoffs, mask, weights)


def mask_newest_policies(mask: Mask) -> Mask:
    """Return a mask of the newest policy of each player, shape [players, capacity]."""
    last = mask.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)
    return jnp.arange(mask.shape[1]) == last[:, None]
