"""Definition of a sweep: its base training, search space, sampler, and the metrics for score and cost."""

import copy
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evorl.errors import OptionError, is_number, require, to_printable
from evorl.parts import iterate_numbers
from evorl.priors import Choice
from evorl.sweeps.space import Parameter, SearchSpace, Value, is_value, shorten_name
from evorl.sweeps.store import SweepStore
from evorl.sweeps.trials import Sampler
from evorl.training import runs
from evorl.training.configuration import config_file, nodes, options, parts, trust_check
from evorl.training.configuration.config_file import WORKFLOW_PREFIX
from evorl.training.configuration.dataclass_nodes import to_node
from evorl.training.configuration.discovery import BUDGET_OPTIONS
from evorl.training.records import files
from evorl.types import Prior

SPACE = "space"
MAX_WORD_LENGTH = 1000  # characters of a command-line argument
CATEGORY_PLACES = "agent.", "env.", "problem."  # prefixes of options that may have categories


@dataclass(frozen=True)
class Variant:
    """Base training of a sweep for one combination of the searched config groups, such as agents; else the only one.

    Attributes:
        base: Resolved configuration of the training.
        chosen: Overrides given on the command line, for the experiment file.
        places: Dotted names in `base` that receive the value of each parameter; empty if the variant does not
            have the parameter.
    """

    base: Mapping[str, Any]
    chosen: tuple[str, ...]
    places: Mapping[str, tuple[str, ...]]

    @cached_property
    def searched_numbers(self) -> frozenset[str]:
        """Return the parameters that are hyperparameters, which may differ between trials of one program."""
        numbers = find_numbers(self.base)
        return frozenset(name for name, places in self.places.items() if any(place in numbers for place in places))

    def set_values(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Return the configuration with the given values of the parameters."""
        data = copy.deepcopy(dict(self.base))
        for name, places in self.places.items():
            for place in places:
                data = set_nested(data, place.split("."), values[name])
        return data


@dataclass(frozen=True)
class SweepDefinition:
    """Definition of a sweep, as its store keeps it."""

    variants: tuple[Variant, ...]  # one for each combination of group categories, the last group varying fastest
    space: SearchSpace
    sampler: Mapping[str, Any]  # as a configuration node
    score: str  # a metric of evaluations, or of the training steps before them (train/return)
    cost: str
    seed: int

    @property
    def base(self) -> Mapping[str, Any]:
        """Return the configuration at which the search begins."""
        return self.find_variant(self.space.defaults).base

    def find_variant(self, values: Mapping[str, Value]) -> Variant:
        """Return the variant of a trial with the given values."""
        i = 0
        for one in self.space.groups:
            i = i * len(one.categories) + one.categories.index(values[one.name])
        return self.variants[i]

    def list_first_values(self) -> list[dict[str, Value]]:
        """Return the values at which the search begins, for each variant."""
        names = [one.name for one in self.space.groups]
        combinations = itertools.product(*(one.categories for one in self.space.groups))
        return [self.space.defaults | dict(zip(names, choices, strict=True)) for choices in combinations]

    def build_configuration(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Return the configuration of a trial with the given values; raise OptionError as `check_values` does."""
        self.check_values(values)
        return self.find_variant(values).set_values(values)

    def check_values(self, values: Mapping[str, Value]) -> None:
        """Check that the values of a trial, which may come from a file, are in the search space.

        Raises:
            OptionError: If a value is missing, belongs to no parameter, or is not allowed.
        """
        names = {one.name for one in self.space.parameters}
        require(set(values) == names, "a trial", ", ".join(values), f"must have values of {', '.join(sorted(names))}")
        for one in self.space.parameters:
            one.require_allowed(values[one.name])

    def get_program_key(self, values: Mapping[str, Value]) -> str:
        """Return a key of the values that need a separate program: all except hyperparameters and budgets."""
        variant = self.find_variant(values)
        groups = {one.name for one in self.space.groups}
        shared = (*variant.searched_numbers, *BUDGET_OPTIONS)
        own = {x for x in values if x in groups or (variant.places[x] and x not in shared)}
        return json.dumps({name: values[name] for name in sorted(own)})

    @property
    def packages(self) -> list[str]:
        """Return the packages that a reader of the definition must trust."""
        return trust_check.find_trust_packages(_list_parts(self.to_data()))

    def build_sampler(self) -> Sampler:
        """Create the sampler."""
        return parts.instantiate(self.sampler, "sampler", Sampler)

    def to_data(self) -> dict[str, Any]:
        """Return the definition as data for JSON."""
        return vars(self) | {
            "variants": [
                {"base": one.base, "chosen": list(one.chosen), "places": {k: list(v) for k, v in one.places.items()}}
                for one in self.variants
            ],
            "space": [
                vars(one) | {"prior": to_node(one.prior), "categories": list(one.categories)}
                for one in self.space.parameters
            ],
        }

    @classmethod
    def from_data(cls, data: Any, trust: Sequence[str] = (), problem: str = "the sweep") -> "SweepDefinition":
        """Read a definition from the data that `to_data` returned, and check it.

        All classes must be known, and all places must be numbers, or options that may have categories.

        Args:
            data: Data from a store, which is not trusted.
            trust: Packages that the reader trusts.
            problem: Beginning of error messages.

        Raises:
            OptionError: If the data is not a valid definition.
        """
        try:
            trust_check.require_known(_list_parts(data), trust, problem)
            space = tuple(
                Parameter(
                    **one
                    | {
                        "prior": parts.instantiate(one["prior"], "space", Prior),
                        "categories": tuple(one["categories"]),
                    }
                )
                for one in data["space"]
            )
            variants = tuple(
                Variant(one["base"], tuple(one["chosen"]), {name: tuple(of) for name, of in one["places"].items()})
                for one in data["variants"]
            )
            found = cls(**data | {"space": SearchSpace(space), "variants": variants})
            found._check(trust, problem)
            return found
        except (TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(f"{problem}: its definition cannot be read") from error

    def _check(self, trust: Sequence[str], problem: str) -> None:
        """Raise OptionError or ValueError if the definition has values that `to_data` never returns."""
        for one in self.space.parameters:
            if one.categories:
                indices = Choice(tuple(range(len(one.categories))))
                if one.prior != indices or not all(map(is_value, one.categories)):
                    raise ValueError("no categories")
            else:
                require(is_number(one.default), one.name, one.default, "must be a number")
            one.require_allowed(one.default)
        if len(self.variants) != math.prod(len(one.categories) for one in self.space.groups):
            raise ValueError("other variants")
        for variant in self.variants:
            self._check_variant(variant, trust, problem)
        texts = [self.score, self.cost, *(word for variant in self.variants for word in variant.chosen)]
        if not all(isinstance(one, str) and one.isprintable() and len(one) < MAX_WORD_LENGTH for one in texts):
            raise ValueError("no words")
        if not isinstance(self.seed, int):
            raise ValueError("no seed")

    def _check_variant(self, variant: Variant, trust: Sequence[str], problem: str) -> None:
        base = variant.base
        records_elsewhere = base.get("wandb") != config_file.WANDB_OFF
        from_elsewhere = any(map(base.get, config_file.NAMED_BY_PATH))
        if not config_file.is_training_config(base) or from_elsewhere or records_elsewhere:
            raise ValueError("its base is not that of a sweep")
        options.check_options(base)
        if variant.places.keys() != self.space.defaults.keys():
            raise ValueError("places of other parameters")
        for one in self.space.parameters:
            for place in (*variant.places[one.name], *([one.name] if variant.places[one.name] else [])):
                value = config_file.lookup(base, place)
                if one.categories:
                    require_category_place(place, value)
                    for category in one.categories:
                        found = set_nested(dict(base), place.split("."), category)
                        trust_check.require_known(found, trust, problem)
                else:
                    searched = is_number(value) or is_prior(value)
                    require(searched, place, value, "is not a number; only numbers can be searched between bounds")


def _list_parts(data: Mapping[str, Any]) -> list[Any]:
    """Return the parts of a definition that may name classes, as data."""
    return [*(one["base"] for one in data["variants"]), data["space"], data["sampler"]]


def open_sweep(folder: Path, trust: Sequence[str], option: str) -> tuple[SweepStore, SweepDefinition]:
    """Return the store and the definition of a sweep, after checking all files of its folder.

    Args:
        folder: Folder of the sweep.
        trust: Packages that the reader trusts.
        option: Name of the option that named the folder, for error messages.

    Raises:
        OptionError: If the folder is not a sweep, or holds files that are not allowed.
    """
    if folder.is_dir():
        files.require_regular_files(folder, option)
    store = SweepStore(folder, option)
    return store, SweepDefinition.from_data(store.settings.get("definition"), trust, f"{option}={folder}: the sweep")


def set_nested(data: dict[str, Any], name: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a copy of nested data with the value at a dotted name replaced."""
    return data | {name[0]: set_nested(data[name[0]], name[1:], value) if name[1:] else value}


def find_numbers(data: Mapping[str, Any]) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Return the value and the declaration of every hyperparameter in a configuration, by option.

    Raises:
        OptionError: If the workflow cannot be built.
    """
    return {f"{WORKFLOW_PREFIX}{name}": (value, of) for name, value, of in iterate_numbers(runs.assemble(data))}


def require_category_place(option: str, value: Any) -> None:
    """Raise OptionError if an option, which has the given value, may not have categories."""
    name = f"{SPACE}.{shorten_name(option)}"
    right = option.startswith(CATEGORY_PLACES) and option.rpartition(".")[2] not in ("_target_", "path", "name")
    only = "cannot be a list of values, unlike options of the agent and the environment"
    require(right, name, to_printable(value), only)
    instead = "is a component; search its options, or a group such as space.core=[gru,lstm]"
    require(not isinstance(value, dict), name, to_printable(value), instead)


def is_prior(value: Any) -> bool:
    """Return whether a value in a configuration is a prior."""
    return isinstance(value, dict) and str(value.get("_target_")).startswith(nodes.PRIORS_PREFIX)
