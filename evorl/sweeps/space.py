"""Search space of a sweep: options of a training with priors, whose values are points of the unit cube."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from evorl.errors import is_number, require
from evorl.priors import Choice
from evorl.training.configuration.config_file import WORKFLOW_PREFIX
from evorl.training.configuration.discovery import BUDGET_OPTIONS, GROUPS, resolve_group
from evorl.types import Prior

SIGNIFICANT_DIGITS = 6  # of the values tried, about float32 precision
MAX_VALUE_CHARACTERS, MAX_VALUE_DEPTH = 100, 3  # of a string, and the nesting of lists
Value = Any  # of a searched option: a number or a category (a string, a bool, None, or a list of those)


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite float, or an int that fits into 64 bits."""
    return abs(value) < 2**63 if type(value) is int else type(value) is float and math.isfinite(value)


def is_value(value: Any, depth: int = MAX_VALUE_DEPTH) -> bool:
    """Return whether an option may have a value: a number, a string, a bool, None, or a list of those."""
    if isinstance(value, list):
        return depth > 0 and all(is_value(one, depth - 1) for one in value)
    if isinstance(value, str):
        return value.isprintable() and len(value) <= MAX_VALUE_CHARACTERS
    return value is None or isinstance(value, bool) or is_finite(value)


def shorten_name(name: str) -> str:
    """Return the shortest name of a searched option."""
    return name.removeprefix(WORKFLOW_PREFIX).removeprefix("agent.")


def format_value(value: Value) -> str:
    """Format a value for display: 1e-05, 20,000, relu, [64,64]."""
    if isinstance(value, float):
        return f"{value:g}"
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_int else json.dumps(value, separators=(",", ":")).replace('"', "")


@dataclass(frozen=True)
class Parameter:
    """Searched option.

    Attributes:
        name: Dotted name, such as agent.workflow.agent.learning_rate, or a config group, such as
            agent/evolver.
        prior: Prior of the number or, for categories, of the index of the category.
        default: Value at which the search begins. An int means that all values are ints.
        categories: Values to choose from; empty for a number.
    """

    name: str
    prior: Prior
    default: Value
    categories: tuple[Value, ...] = ()

    @property
    def is_group(self) -> bool:
        """Return whether the parameter is a config group, whose categories are config files, such as agents."""
        return resolve_group(self.name)[0] in GROUPS

    def decode(self, u: float) -> Value:
        """Return the value at u in [0, 1]."""
        found = float(self.prior.decode(jnp.float32(u)))
        if self.categories:
            return self.categories[round(found)]
        if isinstance(self.prior, Choice):
            value = min(self.prior.values, key=lambda one: abs(one - found))  # without the error of float32
        elif not isinstance(self.default, int):
            value = float(f"{found:.{SIGNIFICANT_DIGITS}g}")
        else:
            value = round(found)
        low, high = self.prior.bounds
        value = min(max(value, low), high)
        return round(value) if isinstance(self.default, int) else float(value)

    def encode(self, value: Value) -> float:
        """Return the position of a value in [0, 1], clipped to the range of the prior."""
        number = self._keys.index(json.dumps(value)) if self.categories else value
        return float(self.prior.encode(jnp.float32(number)))

    @property
    def _keys(self) -> tuple[str, ...]:
        return tuple(map(json.dumps, self.categories))  # JSON distinguishes true from 1

    def is_category(self, value: Value) -> bool:
        """Return whether a value is one of the categories."""
        return json.dumps(value) in self._keys

    def require_allowed(self, value: Value) -> None:
        """Check that the search can have tried a value, which may come from a file.

        Raises:
            OptionError: If it is not one of the categories, or not in the range of the prior.
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
    """Search space of d options with priors, whose values correspond to a point in the unit cube, shape [d]."""

    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        wanted = "has nothing to search; give space.NAME='${log_uniform:1e-5,1e-2}'"
        require(bool(self.parameters), "space", "{}", wanted)
        budgets = [one for one in self.parameters if one.name in BUDGET_OPTIONS]
        require(len(budgets) <= 1, "space", " ".join(one.name for one in budgets), "must have at most one budget")
        for one in budgets:
            least = min(one.prior.bounds)
            least = round(least) if isinstance(one.default, int) else least
            require(least > 0, f"space.{one.name}", one.prior, "must be above 0")

    @property
    def size(self) -> int:
        """Return the number of options, d."""
        return len(self.parameters)

    @cached_property
    def budget_index(self) -> int | None:
        """Return the index of the coordinate that is the training budget of a trial; None if it is not searched."""
        return next((i for i, one in enumerate(self.parameters) if one.name in BUDGET_OPTIONS), None)

    @cached_property
    def num_listed_budgets(self) -> int:
        """Return the number of budgets if the budget is chosen from a list, otherwise 0."""
        prior = None if self.budget_index is None else self.parameters[self.budget_index].prior
        return len(prior.values) if isinstance(prior, Choice) else 0

    @property
    def groups(self) -> tuple[Parameter, ...]:
        """Return the parameters that are config groups."""
        return tuple(one for one in self.parameters if one.is_group)

    @cached_property
    def center(self) -> Float[np.ndarray, " d"]:
        """Return the point of the default values, shape [d]."""
        return np.array([one.encode(one.default) for one in self.parameters])

    @property
    def defaults(self) -> dict[str, Value]:
        """Return the values at which the search begins, by option."""
        return {one.name: one.default for one in self.parameters}

    def decode(self, u: Float[np.ndarray, " d"]) -> dict[str, Value]:
        """Return the values at a point, by option; at the center, exactly the defaults."""
        if np.array_equal(u, self.center):
            return self.defaults
        return {one.name: one.decode(x) for one, x in zip(self.parameters, u, strict=True)}

    @cached_property
    def num_categories(self) -> Int[np.ndarray, " d"]:
        """Return the number of categories of each option, shape [d]; 0 for numbers."""
        return np.array([len(one.categories) for one in self.parameters])

    def to_features(self, u: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n features"]:
        """Return points as features for a Gaussian process.

        Categories are one-hot, scaled so that two different categories have distance 1.
        """
        columns = []
        for i, count in enumerate(self.num_categories):
            index = np.minimum((u[:, i] * count).astype(int), count - 1)
            columns.append(np.eye(count)[index] / np.sqrt(2) if count else u[:, i : i + 1])
        return np.concatenate(columns, axis=1)

    def explore_categories(
        self, u: Float[np.ndarray, "n d"], probability: float, rng: np.random.Generator
    ) -> Float[np.ndarray, "n d"]:
        """Return points in which some categories are replaced by random ones.

        Each category of each point is redrawn with the given probability. With the same probability, all
        points get the same category of one random option. Otherwise, a model with a low prediction for an
        untried category would exclude it forever.
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
        """Return the search radius around a good point for each option, shape [d].

        It is `part` of the unit cube, 0 for categories, and at most half an octave for the budget, since a
        larger budget costs more; in a list of budgets, it reaches the next one.
        """
        far = np.where(self.num_categories, 0.0, part)
        if self.budget_index is not None:
            low, high = self.parameters[self.budget_index].prior.bounds
            far[self.budget_index] = min(part, 1 / (2 * np.log2(high / low)))
            if self.num_listed_budgets:
                far[self.budget_index] = 1 / self.num_listed_budgets
        return far

    def truncate_budgets(self, u: Float[np.ndarray, "n d"], used: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n d"]:
        """Return the points u with the budgets multiplied by the share `used`; u if no budget is searched.

        A budget from a list is not multiplied, since the list has few of the products.
        """
        if self.budget_index is None or self.num_listed_budgets or not len(u):
            return u
        prior, found = self.parameters[self.budget_index].prior, u.copy()
        several = np.ones((2, 1 << len(u).bit_length()), np.float32)  # padded, since each length is compiled
        several[:, : len(u)] = u[:, self.budget_index], used
        budget, part = jnp.asarray(several)
        found[:, self.budget_index] = np.where(
            used == 1, u[:, self.budget_index], prior.encode(prior.decode(budget) * part)[: len(u)]
        )
        return found

    def compute_min_share(self, values: Mapping[str, Value]) -> float:
        """Return the smallest searched budget as a share of the budget in `values`."""
        assert self.budget_index is not None
        one = self.parameters[self.budget_index]
        return min(one.prior.bounds) / values[one.name]

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Return whether values have exactly the names of the options, and are categories or numbers as required."""
        if values.keys() != self.defaults.keys():
            return False
        return all(
            one.is_category(values[one.name]) if one.categories else is_number(values[one.name])
            for one in self.parameters
        )
