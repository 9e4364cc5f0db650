"""The default meta-solver: an equilibrium where that is one linear program, else replicator dynamics."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from evorl import tree
from evorl.leagues.meta_games import Gap, Mask, Table, Weights, center_payoffs, compute_payoff_range, is_constant_sum
from evorl.leagues.nash import Nash
from evorl.leagues.replicator import ProjectedReplicator
from evorl.leagues.solvers import MetaSolver
from evorl.parts import part


@part
class AutoSolver:
    """`constant_sum` for two-player tables of a constant sum, `general_sum` for all others.

    Projected replicator dynamics are the general solver of PSRO's paper (Lanctot et al. 2017, arXiv:1711.00832); here
    they see payoffs in units of their range, in which 50,000 steps of 1e-3 are as long in any game. Tables are looked
    at one by one, so that a game whose sums become known as it is played has the right one from then on.
    """

    constant_sum: MetaSolver = field(default_factory=Nash)
    general_sum: MetaSolver = field(default_factory=ProjectedReplicator)

    def check(self, players: int, zero_sum: bool) -> None:
        """Solves all that the solver for such games does."""
        self.select_solver(players, zero_sum).check(players, zero_sum)

    def select_solver(self, players: int, zero_sum: bool) -> MetaSolver:
        """Return the one for a game of so many players whose kind is known."""
        return self.constant_sum if players == 2 and zero_sum else RangeNormalizedSolver(self.general_sum)

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        players = len(mask)
        general = self.select_solver(players, False)
        if players != 2:
            return general(payoffs, mask)
        constant = is_constant_sum(payoffs, mask)

        def solve_if_applicable(solver: MetaSolver, table: Table, applies: jax.Array) -> tuple[Weights, Gap]:
            """What a solver finds where it applies, computed only if some of the vmapped tables need it."""
            nothing = jnp.zeros(mask.shape), jnp.zeros(())
            return jax.lax.cond(tree.any_unbatched(applies), lambda: solver(table, mask), lambda: nothing)

        found = solve_if_applicable(self.constant_sum, jnp.where(constant, payoffs, 0.0), constant)
        return tree.select(constant, found, solve_if_applicable(general, payoffs, ~constant))


@dataclass(frozen=True)
class RangeNormalizedSolver:
    """Another solver, of payoffs that are divided by the largest range of a player's; the gap is in their own units."""

    solver: MetaSolver

    def check(self, players: int, zero_sum: bool) -> None:
        """As its solver does."""
        self.solver.check(players, zero_sum)

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        scale = compute_payoff_range(payoffs, mask)
        scale = jnp.where(scale > 0, scale, 1.0)
        weights, lacks = self.solver(center_payoffs(payoffs, mask) / scale, mask)
        return weights, lacks * scale
