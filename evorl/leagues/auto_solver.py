"""Default meta-solver: Nash for two-player constant-sum tables, projected replicator dynamics for all others."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from evorl import tree
from evorl.leagues.meta_games import Gap, Mask, Table, Weights, center_payoffs, compute_payoff_range, is_constant_sum
from evorl.leagues.nash import Nash
from evorl.leagues.replicator import ProjectedReplicator
from evorl.leagues.solvers import MetaSolver, require_plain_solver
from evorl.parts import part


@part
class AutoSolver:
    """Meta-solver that selects another one: `constant_sum` for two-player constant-sum tables, else `general_sum`.

    Each table is classified separately. If the payoffs of a game are estimated from episodes, the right
    solver is therefore used as soon as the sums of the payoffs are known.

    Projected replicator dynamics are the general solver of the PSRO paper (Lanctot et al. 2017,
    arXiv:1711.00832). Here the payoffs that `general_sum` receives are divided by their range, so that the
    default 50,000 steps of 1e-3 cover the same time in every game.

    Args:
        constant_sum: Meta-solver of two-player constant-sum tables.
        general_sum: Meta-solver of all other tables.
    """

    constant_sum: MetaSolver = field(default_factory=Nash)
    general_sum: MetaSolver = field(default_factory=ProjectedReplicator)

    def __post_init__(self) -> None:
        require_plain_solver("constant_sum", self.constant_sum)
        require_plain_solver("general_sum", self.general_sum)

    def check(self, players: int, zero_sum: bool) -> None:
        """Check the game with the meta-solver that is selected for it.

        Args:
            players: Number of players.
            zero_sum: Whether the game has a constant sum.

        Raises:
            OptionError: If that meta-solver cannot solve the game.
        """
        self.select_solver(players, zero_sum).check(players, zero_sum)

    def select_solver(self, players: int, zero_sum: bool) -> MetaSolver:
        """Return the meta-solver of a game whose kind is known.

        Args:
            players: Number of players.
            zero_sum: Whether the game has a constant sum.
        """
        return self.constant_sum if players == 2 and zero_sum else RangeNormalizedSolver(self.general_sum)

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        players = len(mask)
        general = self.select_solver(players, False)
        if players != 2:
            return general(payoffs, mask)
        constant = is_constant_sum(payoffs, mask)

        def solve_if_applicable(solver: MetaSolver, table: Table, applies: jax.Array) -> tuple[Weights, Gap]:
            """Return the result of a solver, or zeros if the solver applies to none of the vmapped tables."""
            nothing = jnp.zeros(mask.shape), jnp.zeros(())
            return jax.lax.cond(tree.any_unbatched(applies), lambda: solver(table, mask), lambda: nothing)

        found = solve_if_applicable(self.constant_sum, jnp.where(constant, payoffs, 0.0), constant)
        return tree.select(constant, found, solve_if_applicable(general, payoffs, ~constant))


@dataclass(frozen=True)
class RangeNormalizedSolver:
    """Meta-solver that divides payoffs by the largest payoff range of any player before it calls another solver.

    The gap is in the units of the original payoffs.
    """

    solver: MetaSolver

    def check(self, players: int, zero_sum: bool) -> None:
        """Check the game with the inner solver."""
        self.solver.check(players, zero_sum)

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        scale = compute_payoff_range(payoffs, mask)
        scale = jnp.where(scale > 0, scale, 1.0)
        weights, lacks = self.solver(center_payoffs(payoffs, mask) / scale, mask)
        return weights, lacks * scale
