"""What a sweep is: a training, what of it is searched, by which sampler, and what counts."""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from evorl.errors import OptionError, require, to_printable, unknown_name_error
from evorl.names import find_by_ending
from evorl.parts import iterate_numbers
from evorl.population.search import find_prior
from evorl.sweeps.space import SIGNIFICANT_DIGITS, Parameter, SearchSpace, shorten_name
from evorl.sweeps.store import SweepStore
from evorl.sweeps.trials import Sampler
from evorl.training import runs
from evorl.training.configuration import config, config_file, nodes, options, parts, trust_check
from evorl.training.configuration.config_file import WORKFLOW_PREFIX
from evorl.training.configuration.discovery import BUDGET_OPTIONS, find_choices
from evorl.training.records import files
from evorl.types import Prior

SPACE = "space"
PRIORS_PREFIX = "evorl.priors."
SEARCH_MARKER = "evorl-searched-here"  # a value that no configuration has
VALUE_TOLERANCE = 10.0**-SIGNIFICANT_DIGITS  # of what is tried, relative
MAX_WORD_LENGTH = 1000  # characters of a word of the command line


@dataclass(frozen=True)
class SweepDefinition:
    """A sweep as its store keeps it."""

    base: Mapping[str, Any]  # the configuration of the training, resolved
    chosen: tuple[str, ...]  # what was given on the command line, for the experiment file
    space: SearchSpace
    sampler: Mapping[str, Any]  # as a node
    score: str  # a metric of evaluations, or of the steps before them: train/return
    cost: str
    seed: int

    def build_configuration(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Return the configuration of a trial with values of its own; raises OptionError as check_values does."""
        self.check_values(values)
        data = copy.deepcopy(dict(self.base))
        for one in self.space.parameters:
            for place in one.places:
                data = set_nested(data, place.split("."), values[one.name])
        return data

    def check_values(self, values: Mapping[str, float]) -> None:
        """Refuse values of a trial, which may come from a file, that are not those of the space.

        Raises:
            OptionError: where one is missing, is not searched, or is not within its prior's ends.
        """
        names = {one.name for one in self.space.parameters}
        require(set(values) == names, "a trial", ", ".join(values), f"must have values of {', '.join(sorted(names))}")
        for one in self.space.parameters:
            (low, high), value = sorted(one.prior.bounds), values[one.name]
            slack = VALUE_TOLERANCE * max(abs(low), abs(high))
            within = value == one.default or low - slack <= value <= high + slack
            require(within, one.name, value, f"must be between {low:g} and {high:g}")

    @property
    def packages(self) -> list[str]:
        """Return the packages that a reader needs to trust."""
        data = self.to_data()
        return trust_check.find_trust_packages([data["base"], data["space"], data["sampler"]])

    def list_numbers(self) -> set[str]:
        """Return the names of the parameters that are numbers of parts, in which trials of one program may differ."""
        numbers = find_numbers(self.base)
        return {one.name for one in self.space.parameters if any(place in numbers for place in one.places)}

    def build_sampler(self) -> Sampler:
        """The sampler."""
        return parts.instantiate(self.sampler, "sampler", Sampler)

    def to_data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return vars(self) | {
            "chosen": list(self.chosen),
            "space": [
                vars(one) | {"prior": nodes.to_node(one.prior), "places": list(one.places)}
                for one in self.space.parameters
            ],
        }

    @classmethod
    def from_data(cls, data: Any, trust: Sequence[str] = (), problem: str = "the sweep") -> "SweepDefinition":
        """Return what to_data gave, of which all is known, and places name numbers.

        Args:
            data: from a store.
            trust: packages that the reader trusts.
            problem: what an error begins with.

        Raises:
            OptionError: where it is anything else.
        """
        try:
            trust_check.require_known([data["base"], data["space"], data["sampler"]], trust, problem)
            space = tuple(
                Parameter(
                    **one | {"prior": parts.instantiate(one["prior"], "space", Prior), "places": tuple(one["places"])}
                )
                for one in data["space"]
            )
            found = cls(**data | {"space": SearchSpace(space), "chosen": tuple(data["chosen"])})
            found._check()
            return found
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(f"{problem}: its definition cannot be read") from error

    def _check(self) -> None:
        """Raise OptionError or ValueError where a store holds what to_data never gives."""
        if not config_file.is_training_config(self.base) or self.base.get("init_from") or self.base.get("wandb"):
            raise ValueError("its base is not that of a sweep")
        options.check_options(self.base)
        for one in self.space.parameters:
            for place in (one.name, *one.places):
                number = config_file.lookup(self.base, place)
                searched = _is_number(number) or _is_prior(number)
                require(searched, place, number, "is no number, and only numbers are searched")
            require(_is_number(one.default), one.name, one.default, "must be a number")
        texts = [self.score, self.cost, *self.chosen]
        if not all(isinstance(one, str) and one.isprintable() and len(one) < MAX_WORD_LENGTH for one in texts):
            raise ValueError("no words")
        if not isinstance(self.seed, int):
            raise ValueError("no seed")


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


def parse_search(overrides: Sequence[str], given: Sequence[str]) -> tuple[dict[str, Any], SearchSpace, tuple[str, ...]]:
    """The configuration of a training, the space of what it declares and what is given, and what chooses them.

    space.NAME=PRIOR searches an option, a number in place of a prior fixes it, and space={} leaves out what is
    declared. Raises OptionError.
    """
    bare, wanted = _parse_space_overrides(given)
    cfg, expanded = config.compose_expanded([*overrides, *_add_budget_overrides(overrides, wanted)])
    overrides = expanded[: len(overrides)]
    data = config.to_plain_data(cfg)
    require(data["num_seeds"] >= 1 and not data["resume"], "resume", data["resume"], "is of one training")
    numbers = find_numbers(data)
    priors, fixed = _resolve_priors(data, numbers, bare, wanted)
    priors = {_find_source(cfg, option): prior for option, prior in priors.items()}
    fixed = {_find_source(cfg, option): value for option, value in fixed.items()}
    for option, value in fixed.items():
        _update(cfg, option, value)
    data = config.to_plain_data(cfg)
    if "???" in str(config.to_savable_data(cfg)):
        missing = config_file.find_missing(config.to_savable_data(cfg))
        raise OptionError(f"{missing[0] if missing else 'an option'}: an environment variable gives it; give it itself")
    numbers = find_numbers(data) if fixed else numbers
    found = [_build_parameter(cfg, data, numbers, option, prior) for option, prior in priors.items()]
    others = lambda one: {of.name for of in found} - {one.name}  # noqa: E731  which say themselves what they are
    space = SearchSpace(
        tuple(replace(one, places=tuple(at for at in one.places if at not in others(one))) for one in found)
    )
    _check_ends(numbers, space)
    return data, space, (*overrides, *(f"{option}={value}" for option, value in fixed.items()))


def require_same_space(given: Sequence[str], kept: SweepDefinition, problem: str) -> None:
    """Refuse a space that is given where a sweep has another one.

    Raises:
        OptionError: with the first option whose prior differs.
    """
    resolved, _ = _resolve_priors(kept.base, find_numbers(kept.base), *_parse_space_overrides(given))
    there = {one.name: one.prior for one in kept.space.parameters}
    names = {place: one.name for one in kept.space.parameters for place in one.places}
    asked = {names.get(option, option): prior for option, prior in resolved.items()}
    for name in [*there, *asked]:
        if asked.get(name) != there.get(name):
            has, wants = (space.get(name, "not searched") for space in (there, asked))
            raise OptionError(f"{problem}: is of another space: there {name} is {has}, here {wants}")


def _parse_space_overrides(given: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return the value of space= itself, and the priors and numbers of space.NAME=, by name."""
    asked = {one.key_or_group: one.value() for one in config.parse_overrides(given)}
    bare = asked.pop(SPACE, None)
    require(bare in (None, {}), SPACE, bare, "can be {}, which leaves out what is declared; or give space.NAME=")
    return bare, {name.removeprefix(f"{SPACE}."): _parse_prior(name, value) for name, value in asked.items()}


def _resolve_priors(
    data: Mapping[str, Any], numbers: Mapping[str, Any], bare: Any, wanted: Mapping[str, Any]
) -> tuple[dict[str, Prior], dict[str, Any]]:
    """Return the priors of what is searched, and the numbers that are given in their place, by option.

    Those that stand in place of numbers are searched in any case, those that are declared where bare is not {}.
    """
    found = {option: find_prior(value, {} if bare == {} else declared) for option, (value, declared) in numbers.items()}
    priors = {option: prior for option, prior in found.items() if prior is not None}
    fixed: dict[str, Any] = {}
    for name, prior in wanted.items():
        option = resolve_option(data, name)
        priors.pop(option, None)
        if isinstance(prior, Prior):
            priors[option] = prior
        else:
            fixed[option] = prior
    return priors, fixed


def _parse_prior(name: str, value: Any) -> Any:
    """A prior, or a number, as an override gives it."""
    if _is_number(value):
        return value
    try:
        node = OmegaConf.to_container(OmegaConf.create({"value": value}), resolve=True)
    except OmegaConfBaseException as error:
        raise OptionError(f"{name}={value}: {str(error).splitlines()[0]}") from error
    node = node["value"] if isinstance(node, dict) else node
    require(isinstance(node, dict), name, value, "must be a prior, such as ${log_uniform:1e-5,1e-2}, or a number")
    return parts.instantiate(node, name, Prior)


def _add_budget_overrides(overrides: Sequence[str], wanted: Mapping[str, Any]) -> Iterator[str]:
    """A budget that is searched is the only one: it begins where it was given, or in the middle."""
    for name in BUDGET_OPTIONS:
        prior = wanted.get(name)
        if isinstance(prior, Prior) and not any(one.startswith(f"{name}=") for one in overrides):
            yield f"{name}={Parameter(name, prior, 0).decode(0.5)}"


def find_numbers(data: Mapping[str, Any]) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Return every number of the parts that a configuration describes, by option: its value, and what is declared.

    Raises:
        OptionError: where it cannot be built.
    """
    return {f"{WORKFLOW_PREFIX}{name}": (value, of) for name, value, of in iterate_numbers(runs.assemble(data))}


def _find_source(cfg: DictConfig, option: str) -> str:
    """The option that stands for one of a node to which another one refers, in the node that it refers to."""
    for place, source in config.find_references(cfg.agent, "agent"):
        if option.startswith(f"{place}."):
            return _find_source(cfg, source + option.removeprefix(place))
    return option


def resolve_option(data: Mapping[str, Any], name: str) -> str:
    """The option that is meant: a number of the agent or its workflow, as it stands, or by a short name.

    Raises OptionError where there is none, or no number.
    """
    for option in (f"{WORKFLOW_PREFIX}agent.{name}", f"{WORKFLOW_PREFIX}{name}", f"agent.{name}", name):
        if config_file.lookup(data, option, SEARCH_MARKER) != SEARCH_MARKER:
            break
    else:
        option = find_by_ending(name, _list_numbers(data)) or name
    value = config_file.lookup(data, option, SEARCH_MARKER)
    if value == SEARCH_MARKER:
        raise unknown_name_error("parameter", f"{SPACE}.{name}", [f"{SPACE}.{one}" for one in _list_searchable(data)])
    number = _is_number(value) or option in BUDGET_OPTIONS or _is_prior(value)
    of = [one for one in value if one != "_target_"] if isinstance(value, dict) else []
    instead = f"; {SPACE}.{name}.{of[0]} is one" if of and _is_number(value[of[0]]) else ""
    require(number, f"{SPACE}.{name}", to_printable(value), f"is no number, and only numbers are searched{instead}")
    return option


def _is_prior(value: Any) -> bool:
    return isinstance(value, dict) and str(value.get("_target_")).startswith(PRIORS_PREFIX)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _list_searchable(data: Mapping[str, Any]) -> Iterator[str]:
    """What can be searched, by its shortest name."""
    yield from BUDGET_OPTIONS
    yield from map(shorten_name, _list_numbers(data))


def _list_numbers(data: Mapping[str, Any]) -> Iterator[str]:
    """Options of a configuration that are one number each, of an agent those of its workflow."""
    for place, value in config_file.iterate_leaves(data, ""):
        if _is_number(value) and "[" not in place and (place.startswith(WORKFLOW_PREFIX) or place[:6] != "agent."):
            yield place


def _build_parameter(
    cfg: DictConfig, data: Mapping[str, Any], numbers: Mapping[str, Any], option: str, prior: Prior
) -> Parameter:
    """A parameter with all places to which its value goes, as what stands for it elsewhere is resolved."""
    marked = copy.deepcopy(cfg)
    _update(marked, option, SEARCH_MARKER)
    places = tuple(
        place for place, value in config_file.iterate_leaves(config.to_plain_data(marked), "") if value == SEARCH_MARKER
    )
    default = config_file.lookup(data, option)
    for place in places:
        if place in numbers:
            value, declared = numbers[place]
            default = value if _is_number(value) else declared.get("default", sum(prior.bounds) / 2)
    return Parameter(option, prior, default, places)


def _update(cfg: DictConfig, option: str, value: Any) -> None:
    """Set an option, also of what a resolver such as ${linear:1e-3,0} stands for."""
    node = option.rpartition(".")[0]
    if isinstance(resolved := OmegaConf.select(cfg, node), dict):
        OmegaConf.update(cfg, node, resolved)
    OmegaConf.update(cfg, option, value)


def _check_ends(numbers: Mapping[str, Any], space: SearchSpace) -> None:
    """Raises OptionError where a number would be searched where it may not be."""
    for one in space.parameters:
        low, high = (0 if one.name in BUDGET_OPTIONS else -math.inf), math.inf
        for place in one.places:
            _, declared = numbers.get(place, (None, {}))
            low, high = declared.get("low", low), declared.get("high", high)
        for end in one.prior.bounds:
            require(
                low <= end <= high,
                f"{SPACE}.{shorten_name(one.name)}",
                one.prior,
                f"must be between {low:g} and {high:g}",
            )


def build_sampler_node(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The node of a sampler, with options of its own; raises OptionError."""
    known = find_choices("sampler")
    if name not in known:
        raise unknown_name_error("sampler", name, known)
    node = nodes.fill_defaults(known[name].read())
    for option in given:
        if option not in node:
            raise unknown_name_error(
                "option", f"sampler.{option}", [f"sampler.{one}" for one in node if one != "_target_"]
            )
    node = node | given
    parts.instantiate(node, "sampler", Sampler)
    return node
