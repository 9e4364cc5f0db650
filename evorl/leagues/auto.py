"""The default meta-solver: an equilibrium where that is one linear program, else replicator dynamics."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from evorl import tree
from evorl.leagues.meta_games import Gap, Mask, Table, Weights, centred, is_constant_sum, span
from evorl.leagues.nash import Nash
from evorl.leagues.replicator import ProjectedReplicator
from evorl.leagues.solvers import Solver
from evorl.types import Hyperparams


@dataclass(frozen=True)
class AutoSolver:
    """`constant_sum` for two-player tables of a constant sum, `general_sum` for all others.

    Projected replicator dynamics are the general solver of PSRO's paper (Lanctot et al. 2017, arXiv:1711.00832); here
    they see payoffs in units of their range, in which 50,000 steps of 1e-3 are as long in any game. Tables are looked
    at one by one, so that a game whose sums become known as it is played has the right one from then on.
    """

    constant_sum: Solver = field(default_factory=Nash)
    general_sum: Solver = field(default_factory=ProjectedReplicator)

    def check(self, players: int, zero_sum: bool) -> None:
        """Solves all that the solver for such games does."""
        self.chosen(players, zero_sum).check(players, zero_sum)

    def chosen(self, players: int, zero_sum: bool) -> Solver:
        """Return the one for a game of so many players whose kind is known."""
        return self.constant_sum if players == 2 and zero_sum else InUnitsOfRange(self.general_sum)

    def __call__(self, payoffs: Table, mask: Mask, hyperparams: Hyperparams = ()) -> tuple[Weights, Gap]:
        players = len(mask)
        general = self.chosen(players, False)
        if players != 2:
            return general(payoffs, mask, hyperparams)
        constant = is_constant_sum(payoffs, mask)

        def solved(solver: Solver, table: Table, applies: jax.Array) -> tuple[Weights, Gap]:
            """What a solver finds where it applies, computed only if some of the vmapped tables need it."""
            nothing = jnp.zeros(mask.shape), jnp.zeros(())
            return jax.lax.cond(tree.any_unbatched(applies), lambda: solver(table, mask, hyperparams), lambda: nothing)

        found = solved(self.constant_sum, jnp.where(constant, payoffs, 0.0), constant)
        return tree.where(constant, found, solved(general, payoffs, ~constant))


@dataclass(frozen=True)
class InUnitsOfRange:
    """Another solver, of payoffs that are divided by the largest range of a player's; the gap is in their own units."""

    solver: Solver

    def check(self, players: int, zero_sum: bool) -> None:
        """As its solver does."""
        self.solver.check(players, zero_sum)

    def __call__(self, payoffs: Table, mask: Mask, hyperparams: Hyperparams = ()) -> tuple[Weights, Gap]:
        scale = span(payoffs, mask)
        scale = jnp.where(scale > 0, scale, 1.0)
        weights, lacks = self.solver(centred(payoffs, mask) / scale, mask, hyperparams)
        return weights, lacks * scale
