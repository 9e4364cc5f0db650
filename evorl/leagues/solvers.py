"""Meta-solvers: how policies are weighted by the table of what they pay."""

from dataclasses import dataclass

import jax.numpy as jnp
from typing_extensions import Protocol, runtime_checkable

from evorl.errors import require
from evorl.leagues.meta_games import Gap, Mask, Table, Weights, normalize_weights, with_gap


@runtime_checkable
class MetaSolver(Protocol):
    """What makes mixtures of a table; unfilled cells may hold anything."""

    def check(self, players: int, zero_sum: bool) -> None:
        """Raises OptionError for games that it cannot solve; those of a constant sum count as zero-sum games."""
        ...

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        """Return the weights of policies and how far they are from an equilibrium of the table.

        Both are NaN under jit where a filled cell is not finite, or where the table is none that it solves; outside of
        jit that raises OptionError.
        """
        ...


@runtime_checkable
class RectifyingSolver(MetaSolver, Protocol):
    """A solver whose mixtures are not what new policies answer."""

    def compute_opponent_mixtures(self, payoffs: Table, mask: Mask, weights: Weights) -> Weights:
        """Each player's mixture as the others' new policies meet it, where its weights are these."""
        ...


def select_opponent_mixtures(solver: MetaSolver, payoffs: Table, mask: Mask, weights: Weights) -> Weights:
    """The mixtures that new policies answer: a solver's weights, or what it makes of them."""
    return solver.compute_opponent_mixtures(payoffs, mask, weights) if isinstance(solver, RectifyingSolver) else weights


@dataclass(frozen=True)
class UniformMixture:
    """All policies alike, which makes PSRO fictitious self-play (Heinrich et al. 2015)."""

    def check(self, players: int, zero_sum: bool) -> None:
        """Solves all."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        weights = normalize_weights(jnp.ones(mask.shape), mask)
        return with_gap(payoffs, mask, weights)


@dataclass(frozen=True)
class NewestPolicySolver:
    """The newest policy alone, which makes PSRO self-play."""

    def check(self, players: int, zero_sum: bool) -> None:
        """Solves all."""

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        weights = mask_newest_policies(mask).astype(jnp.float32)
        return with_gap(payoffs, mask, weights)


@dataclass(frozen=True)
class UniformlyMixedSolver:
    """The weights of another solver, with a share of even ones, so that no policy is forgotten."""

    solver: MetaSolver
    uniform: float = 0.2

    def __post_init__(self) -> None:
        require(0 <= self.uniform <= 1, "uniform", self.uniform, "must be between 0 and 1")

    def check(self, players: int, zero_sum: bool) -> None:
        """As its solver does."""
        self.solver.check(players, zero_sum)

    def __call__(self, payoffs: Table, mask: Mask) -> tuple[Weights, Gap]:
        weights, _ = self.solver(payoffs, mask)
        weights = (1 - self.uniform) * weights + self.uniform * normalize_weights(jnp.ones(mask.shape), mask)
        return with_gap(payoffs, mask, weights)


def mask_newest_policies(mask: Mask) -> Mask:
    """The last policy that each player has."""
    last = mask.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)
    return jnp.arange(mask.shape[1]) == last[:, None]
