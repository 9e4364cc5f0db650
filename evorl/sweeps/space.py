"""What a sweep searches: options of a training, each with a prior, as points of the unit cube."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from evorl.errors import is_number, require
from evorl.training.configuration.config_file import WORKFLOW_PREFIX
from evorl.training.configuration.discovery import BUDGET_OPTIONS, GROUPS, resolve_group
from evorl.types import Prior

SIGNIFICANT_DIGITS = 6  # of a number that is tried, which is what it has in float32
Value = Any  # of an option that is searched: a number, or a category: a word, true, false, null, or a list of those


def shorten_name(name: str) -> str:
    """The shortest name of an option that is searched."""
    return name.removeprefix(WORKFLOW_PREFIX).removeprefix("agent.")


def format_value(value: Value) -> str:
    """Return a value as one writes it: 1e-05, 20,000, relu, [64,64]."""
    if isinstance(value, float):
        return f"{value:g}"
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_int else json.dumps(value, separators=(",", ":")).replace('"', "")


@dataclass(frozen=True)
class Parameter:
    """An option that is searched.

    Attributes:
        name: dotted, as agent.workflow.agent.learning_rate, or a group of choices, as agent/evolver.
        prior: of its number; of its category, of the category's index.
        default: where the search begins; a whole number where the option is one.
        categories: the values to choose from, where it is no number.
    """

    name: str
    prior: Prior
    default: Value
    categories: tuple[Value, ...] = ()

    @property
    def is_group(self) -> bool:
        """True where its categories are files and lines of tables, such as agents."""
        return resolve_group(self.name)[0] in GROUPS

    def decode(self, u: float) -> Value:
        """Return its value at u in [0, 1]."""
        found = float(self.prior.decode(jnp.float32(u)))
        if self.categories:
            return self.categories[round(found)]
        value = float(f"{found:.{SIGNIFICANT_DIGITS}g}")
        return round(value) if isinstance(self.default, int) else value

    def encode(self, value: Value) -> float:
        """Return where in [0, 1] a value lies, clipped to the prior's ends."""
        number = self._keys.index(json.dumps(value)) if self.categories else value
        return float(self.prior.encode(jnp.float32(number)))

    @property
    def _keys(self) -> tuple[str, ...]:
        return tuple(map(json.dumps, self.categories))  # of which that of true is not that of 1

    def is_category(self, value: Value) -> bool:
        """Return whether a value is one of the categories."""
        return json.dumps(value) in self._keys

    def require_allowed(self, value: Value) -> None:
        """Refuse a value, which may come from a file, that the search cannot have tried.

        Raises:
            OptionError: where it is none of the categories, or not within the prior's ends.
        """
        if self.categories:
            allowed = ", ".join(map(format_value, self.categories))
            require(self.is_category(value), self.name, value, f"must be one of {allowed}")
            return
        low, high = sorted(self.prior.bounds)
        slack = 10.0**-SIGNIFICANT_DIGITS * max(abs(low), abs(high))
        within = is_number(value) and (value == self.default or low - slack <= value <= high + slack)
        require(within, self.name, value, f"must be between {low:g} and {high:g}")


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

    @property
    def groups(self) -> tuple[Parameter, ...]:
        """The groups of choices that are searched."""
        return tuple(one for one in self.parameters if one.is_group)

    @cached_property
    def center(self) -> Float[np.ndarray, " d"]:
        """Where the defaults lie."""
        return np.array([one.encode(one.default) for one in self.parameters])

    @property
    def defaults(self) -> dict[str, Value]:
        """The values where the search begins."""
        return {one.name: one.default for one in self.parameters}

    def decode(self, u: Float[np.ndarray, " d"]) -> dict[str, Value]:
        """The values at a point, by option; at the center the defaults, bit by bit."""
        if np.array_equal(u, self.center):
            return self.defaults
        return {one.name: one.decode(x) for one, x in zip(self.parameters, u, strict=True)}

    @cached_property
    def num_categories(self) -> Int[np.ndarray, " d"]:
        """The number of categories of each option, 0 where it is a number."""
        return np.array([len(one.categories) for one in self.parameters])

    def to_features(self, u: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n features"]:
        """Return points as a Gaussian process takes them: a category is one-hot, 1 away from any other."""
        columns = []
        for i, count in enumerate(self.num_categories):
            index = np.minimum((u[:, i] * count).astype(int), count - 1)
            columns.append(np.eye(count)[index] / np.sqrt(2) if count else u[:, i : i + 1])
        return np.concatenate(columns, axis=1)

    def explore_categories(
        self, u: Float[np.ndarray, "n d"], probability: float, rng: np.random.Generator
    ) -> Float[np.ndarray, "n d"]:
        """Return points with other categories.

        Each category of each point is drawn anew with the probability. With the same probability all points get one
        category in common, of one option: else a model that expects little of what was never tried would rule it out.
        """
        counts = self.num_categories
        if not counts.any():
            return u
        cells = np.maximum(counts, 1)
        drawn = (np.floor(rng.uniform(size=u.shape) * cells) + 0.5) / cells
        found = np.where((counts > 0) & (rng.uniform(size=u.shape) < probability), drawn, u)
        if rng.uniform() < probability:
            i = rng.choice(np.flatnonzero(counts))
            found[:, i] = drawn[0, i]
        return found

    def compute_search_radius(self, part: float) -> Float[np.ndarray, " d"]:
        """Return how far from a good point to look.

        A part of the cube; of a budget half an octave, in which a step costs; of a category nowhere.
        """
        far = np.where(self.num_categories, 0.0, part)
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

    def compute_min_share(self, values: Mapping[str, Value]) -> float:
        """Return the smallest part of the budget in values that is a budget that can be searched."""
        assert self.budget_index is not None
        one = self.parameters[self.budget_index]
        return min(one.prior.bounds) / values[one.name]

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Return whether values have the names of the options, and categories of theirs."""
        if values.keys() != self.defaults.keys():
            return False
        return all(
            one.is_category(values[one.name]) if one.categories else is_number(values[one.name])
            for one in self.parameters
        )
