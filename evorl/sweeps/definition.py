"""What a sweep is: a training, what of it is searched, by which sampler, and what counts."""

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
from evorl.sweeps.space import Parameter, SearchSpace, Value, shorten_name
from evorl.sweeps.store import SweepStore
from evorl.sweeps.trials import Sampler
from evorl.training import runs
from evorl.training.configuration import config_file, nodes, options, parts, trust_check
from evorl.training.configuration.config_file import WORKFLOW_PREFIX
from evorl.training.configuration.discovery import BUDGET_OPTIONS
from evorl.training.records import files
from evorl.types import Prior

SPACE = "space"
MAX_WORD_LENGTH = 1000  # characters of a word of the command line
MAX_CATEGORY_LENGTH, MAX_CATEGORY_DEPTH = 100, 3  # characters of a word to choose, lists within one another
CATEGORY_PLACES = "agent.", "env.", "problem."  # which begin the names of options that may have categories


@dataclass(frozen=True)
class Variant:
    """A training of a sweep: one for each combination of the groups that are searched, as an agent; else the only one.

    Attributes:
        base: the configuration of the training, resolved.
        chosen: what was given on the command line, for the experiment file.
        places: by parameter, where in base its value stands; () of one that this does not have.
    """

    base: Mapping[str, Any]
    chosen: tuple[str, ...]
    places: Mapping[str, tuple[str, ...]]

    @cached_property
    def searched_numbers(self) -> frozenset[str]:
        """The names of the parameters that are numbers of parts, in which trials of one program may differ."""
        numbers = find_numbers(self.base)
        return frozenset(name for name, places in self.places.items() if any(place in numbers for place in places))

    def set_values(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Return the configuration with values of parameters."""
        data = copy.deepcopy(dict(self.base))
        for name, places in self.places.items():
            for place in places:
                data = set_nested(data, place.split("."), values[name])
        return data


@dataclass(frozen=True)
class SweepDefinition:
    """A sweep as its store keeps it."""

    variants: tuple[Variant, ...]  # one for each combination of the categories of groups, the last one changing fastest
    space: SearchSpace
    sampler: Mapping[str, Any]  # as a node
    score: str  # a metric of evaluations, or of the steps before them: train/return
    cost: str
    seed: int

    @property
    def base(self) -> Mapping[str, Any]:
        """The configuration where the search begins."""
        return self.find_variant(self.space.defaults).base

    def find_variant(self, values: Mapping[str, Value]) -> Variant:
        """Return the variant of a trial with these values."""
        i = 0
        for one in self.space.groups:
            i = i * len(one.categories) + one.categories.index(values[one.name])
        return self.variants[i]

    def list_first_values(self) -> list[dict[str, Value]]:
        """Return the values where the search begins in each variant."""
        names = [one.name for one in self.space.groups]
        combinations = itertools.product(*(one.categories for one in self.space.groups))
        return [self.space.defaults | dict(zip(names, choices, strict=True)) for choices in combinations]

    def build_configuration(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Return the configuration of a trial with values of its own; raises OptionError as check_values does."""
        self.check_values(values)
        return self.find_variant(values).set_values(values)

    def check_values(self, values: Mapping[str, Value]) -> None:
        """Refuse values of a trial, which may come from a file, that are not those of the space.

        Raises:
            OptionError: where one is missing, is not searched, or is not one that its parameter allows.
        """
        names = {one.name for one in self.space.parameters}
        require(set(values) == names, "a trial", ", ".join(values), f"must have values of {', '.join(sorted(names))}")
        for one in self.space.parameters:
            one.require_allowed(values[one.name])

    def get_program_key(self, values: Mapping[str, Value]) -> str:
        """Return what values of a trial need a program of their own: all but numbers of parts and budgets."""
        variant = self.find_variant(values)
        groups = {one.name for one in self.space.groups}
        shared = (*variant.searched_numbers, *BUDGET_OPTIONS)
        own = {x for x in values if x in groups or (variant.places[x] and x not in shared)}
        return json.dumps({name: values[name] for name in sorted(own)})

    @property
    def packages(self) -> list[str]:
        """Return the packages that a reader needs to trust."""
        return trust_check.find_trust_packages(_list_parts(self.to_data()))

    def build_sampler(self) -> Sampler:
        """The sampler."""
        return parts.instantiate(self.sampler, "sampler", Sampler)

    def to_data(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return vars(self) | {
            "variants": [
                {"base": one.base, "chosen": list(one.chosen), "places": {k: list(v) for k, v in one.places.items()}}
                for one in self.variants
            ],
            "space": [
                vars(one) | {"prior": nodes.to_node(one.prior), "categories": list(one.categories)}
                for one in self.space.parameters
            ],
        }

    @classmethod
    def from_data(cls, data: Any, trust: Sequence[str] = (), problem: str = "the sweep") -> "SweepDefinition":
        """Return what to_data gave, of which all is known, and places name numbers, or options of categories.

        Args:
            data: from a store.
            trust: packages that the reader trusts.
            problem: what an error begins with.

        Raises:
            OptionError: where it is anything else.
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
        """Raise OptionError or ValueError where a store holds what to_data never gives."""
        for one in self.space.parameters:
            if one.categories:
                indices = Choice(tuple(range(len(one.categories))))
                if one.prior != indices or not all(map(is_category, one.categories)):
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
                    require(searched, place, value, "is no number, and only numbers are searched between bounds")


def _list_parts(data: Mapping[str, Any]) -> list[Any]:
    """Return what of a definition as data may name classes."""
    return [*(one["base"] for one in data["variants"]), data["space"], data["sampler"]]


def open_sweep(folder: Path, trust: Sequence[str], option: str) -> tuple[SweepStore, SweepDefinition]:
    """Return the store of a sweep and what it is, once all files of its folder are known to be its own.

    Args:
        folder: of the sweep.
        trust: packages that the reader trusts.
        option: which names the folder in an error.

    Raises:
        OptionError: where it is no sweep, or holds what may not be.
    """
    if folder.is_dir():
        files.require_regular_files(folder, option)
    store = SweepStore(folder, option)
    return store, SweepDefinition.from_data(store.settings.get("definition"), trust, f"{option}={folder}: the sweep")


def set_nested(data: dict[str, Any], name: Sequence[str], value: Any) -> dict[str, Any]:
    """data with a value at a dotted name."""
    return data | {name[0]: set_nested(data[name[0]], name[1:], value) if name[1:] else value}


def find_numbers(data: Mapping[str, Any]) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Return every number of the parts that a configuration describes, by option: its value, and what is declared.

    Raises:
        OptionError: where it cannot be built.
    """
    return {f"{WORKFLOW_PREFIX}{name}": (value, of) for name, value, of in iterate_numbers(runs.assemble(data))}


def require_category_place(option: str, value: Any) -> None:
    """Raise OptionError where an option, which has this value, may not have categories."""
    name = f"{SPACE}.{shorten_name(option)}"
    right = option.startswith(CATEGORY_PLACES) and option.rpartition(".")[2] not in ("_target_", "path", "name")
    only = "has no values to choose from; options of the agent and the environment have"
    require(right, name, to_printable(value), only)
    instead = "is a part; search its options, or a group such as space.core=[gru,lstm]"
    require(not isinstance(value, dict), name, to_printable(value), instead)


def is_category(value: Any, depth: int = MAX_CATEGORY_DEPTH) -> bool:
    """Return whether a value may be chosen: a number, a word, true, false, null, or a list of those."""
    if isinstance(value, list):
        return depth > 0 and all(is_category(one, depth - 1) for one in value)
    if isinstance(value, str):
        return value.isprintable() and len(value) <= MAX_CATEGORY_LENGTH
    return value is None or isinstance(value, bool) or (is_number(value) and math.isfinite(value))


def is_prior(value: Any) -> bool:
    """Return whether a value of a configuration is a prior."""
    return isinstance(value, dict) and str(value.get("_target_")).startswith(nodes.PRIORS_PREFIX)
