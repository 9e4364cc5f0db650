"""What a sweep searches: options of a training, each with a prior, as points of the unit cube."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from evorl.errors import require
from evorl.training.configuration.config_file import WORKFLOW_PREFIX
from evorl.training.configuration.discovery import BUDGET_OPTIONS
from evorl.types import Prior

SIGNIFICANT_DIGITS = 6  # of a number that is tried, which is what it has in float32


def shorten_name(name: str) -> str:
    """The shortest name of an option that is searched."""
    return name.removeprefix(WORKFLOW_PREFIX).removeprefix("agent.")


@dataclass(frozen=True)
class Parameter:
    """An option that is searched."""

    name: str  # dotted, as agent.workflow.agent.learning_rate
    prior: Prior
    default: float  # where the search begins; a whole number where the option is one
    places: tuple[str, ...] = ()  # in the configuration, where its value stands

    def decode(self, u: float) -> float:
        """Its value at u in [0, 1]."""
        value = float(f"{float(self.prior.decode(jnp.float32(u))):.{SIGNIFICANT_DIGITS}g}")
        return round(value) if isinstance(self.default, int) else value

    def encode(self, value: float) -> float:
        """Where in [0, 1] a value lies, clipped to the prior's ends."""
        return float(self.prior.encode(jnp.float32(value)))


@dataclass(frozen=True)
class SearchSpace:
    """Options with priors, d of them, whose values are a point in the unit cube [d]."""

    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        wanted = "names nothing to search; give space.NAME='${log_uniform:1e-5,1e-2}'"
        require(bool(self.parameters), "space", "{}", wanted)
        budgets = [one.name for one in self.parameters if one.name in BUDGET_OPTIONS]
        require(len(budgets) <= 1, "space", " ".join(budgets), "can search one budget")

    @property
    def size(self) -> int:
        """How many options, d."""
        return len(self.parameters)

    @cached_property
    def budget_index(self) -> int | None:
        """Which coordinate says how long a trial trains, if any does."""
        return next((i for i, one in enumerate(self.parameters) if one.name in BUDGET_OPTIONS), None)

    @cached_property
    def center(self) -> Float[np.ndarray, " d"]:
        """Where the defaults lie."""
        return np.array([one.encode(one.default) for one in self.parameters])

    @property
    def defaults(self) -> dict[str, float]:
        """The values where the search begins."""
        return {one.name: one.default for one in self.parameters}

    def decode(self, u: Float[np.ndarray, " d"]) -> dict[str, float]:
        """The values at a point, by option; at the center the defaults, bit by bit."""
        if np.array_equal(u, self.center):
            return self.defaults
        return {one.name: one.decode(x) for one, x in zip(self.parameters, u, strict=True)}

    def compute_search_radius(self, part: float) -> Float[np.ndarray, " d"]:
        """How far from a good point to look: part of the cube; of a budget half an octave, in which a step costs."""
        far = np.full(self.size, part)
        if self.budget_index is not None:
            low, high = self.parameters[self.budget_index].prior.bounds
            far[self.budget_index] = min(part, 1 / (2 * np.log2(high / low)))
        return far

    def truncate_budgets(self, u: Float[np.ndarray, "n d"], used: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n d"]:
        """Return the points of trials whose budgets are only parts of those at u; u where no budget is searched."""
        if self.budget_index is None or not len(u):
            return u
        prior, found = self.parameters[self.budget_index].prior, u.copy()
        several = np.ones((2, 1 << len(u).bit_length()), np.float32)  # of few lengths, each of which is compiled
        several[:, : len(u)] = u[:, self.budget_index], used
        budget, part = jnp.asarray(several)
        found[:, self.budget_index] = np.where(
            used == 1, u[:, self.budget_index], prior.encode(prior.decode(budget) * part)[: len(u)]
        )
        return found

    def compute_min_share(self, values: Mapping[str, float]) -> float:
        """Return the smallest part of the budget in values that is a budget that can be searched."""
        assert self.budget_index is not None
        one = self.parameters[self.budget_index]
        return min(one.prior.bounds) / values[one.name]

    def get_program_key(self, values: Mapping[str, float], numbers: Collection[str]) -> tuple[tuple[str, float], ...]:
        """Return what values of a trial need a program of their own: all but numbers of parts and budgets.

        Args:
            values: of all parameters, by name.
            numbers: the names of those that are numbers of parts.
        """
        return tuple(sorted((name, x) for name, x in values.items() if name not in (*numbers, *BUDGET_OPTIONS)))
