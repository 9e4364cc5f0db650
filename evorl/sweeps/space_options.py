"""Command-line options of the search space of a sweep: which options are searched, and their priors or values."""

import copy
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from evorl.errors import OptionError, is_number, require, to_printable, unknown_name_error
from evorl.names import find_by_ending
from evorl.population.search import find_prior
from evorl.priors import Choice
from evorl.sweeps.definition import (
    CATEGORY_PLACES,
    SPACE,
    SweepDefinition,
    Variant,
    find_numbers,
    is_prior,
    require_category_place,
)
from evorl.sweeps.space import Parameter, SearchSpace, Value, format_value, is_value, shorten_name
from evorl.sweeps.trials import Sampler
from evorl.training import runs
from evorl.training.configuration import config, config_file, nodes, parts
from evorl.training.configuration.config_file import WORKFLOW_PREFIX
from evorl.training.configuration.discovery import BUDGET_OPTIONS, GROUPS, find_choices, resolve_group
from evorl.training.configuration.short_names import refuse_peer_name
from evorl.types import Prior

SEARCH_MARKER = "evorl-searched-here"  # a value that no configuration contains
MINUTES = "minutes"  # the only budget that need not be a whole number
MAX_VARIANTS = 32  # maximum number of combinations of group choices
TASK_GROUPS = "env", "problem", "experiment"  # groups that determine the task


@dataclass(frozen=True)
class Categories:
    """Values to choose from, given as space.NAME=[...]."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(format_value, self.values))}]"

    def to_parameter(self, name: str, default: Value) -> Parameter:
        """Return the parameter of these values, which begins at the default if it is one of them, else at the first."""
        one = Parameter(name, Choice(tuple(range(len(self.values)))), self.values[0], self.values)
        return replace(one, default=default) if one.is_category(default) else one


def parse_search(overrides: Sequence[str], given: Sequence[str]) -> tuple[tuple[Variant, ...], SearchSpace]:
    """Return the variants of a sweep, and the search space from declared priors and command-line options.

    Args:
        overrides: Overrides of the training.
        given: Options of the space. space.NAME=PRIOR searches a number. space.NAME=[...] searches any option
            or a config group. space.NAME=NUMBER fixes a number. space={} ignores declared priors.

    Raises:
        OptionError: If an option is invalid.
    """
    bare, wanted = _parse_space_overrides(given)
    groups = [_build_group(name, wanted.pop(name), overrides) for name in [*wanted] if _is_group(name)]
    count = math.prod(len(one.categories) for one in groups)
    require(
        count <= MAX_VARIANTS,
        SPACE,
        f"{count} combinations",
        f"must have at most {MAX_VARIANTS} combinations of groups",
    )
    plain = [one for one in overrides if one.partition("=")[0] not in {group.name for group in groups}]
    unknown: dict[str, list[OptionError]] = {name: [] for name in wanted}
    variants, parameters = [], {one.name: one for one in groups}
    for names in itertools.product(*(one.categories for one in groups)):
        choices = [f"{one.name}={name}" for one, name in zip(groups, names, strict=True)]
        try:
            base, chosen, found, lacks = _search_variant([*plain, *choices], bare, wanted, skips=bool(groups))
        except OptionError as error:
            raise OptionError(f"{SPACE}.{choices[0]}: {error}" if choices else str(error)) from error
        for name, error in lacks.items():
            unknown[name].append(error)
        for one, _ in found:
            known = parameters.setdefault(one.name, one)
            same = (one.prior, one.categories) == (known.prior, known.categories)
            instead = f"the declared priors differ; give {SPACE}.{shorten_name(one.name)}="
            require(same, f"{SPACE}.{shorten_name(one.name)}", f"{known.prior} and {one.prior}", instead)
        variants.append((base, chosen, {one.name: places for one, places in found}))
    for errors in unknown.values():
        if len(errors) == count:
            raise errors[0]
    places = dict.fromkeys(parameters, ())
    return (
        tuple(Variant(base, chosen, places | of) for base, chosen, of in variants),
        SearchSpace(tuple(parameters.values())),
    )


def _search_variant(
    overrides: Sequence[str], bare: Any, wanted: Mapping[str, Any], skips: bool
) -> tuple[dict[str, Any], tuple[str, ...], list[tuple[Parameter, tuple[str, ...]]], dict[str, OptionError]]:
    """Return the configuration of one variant, its overrides, its parameters with their places, and errors.

    The errors, by name, are for wanted names that this variant does not have.
    """
    cfg, expanded = config.compose_expanded([*overrides, *_add_budget_overrides(overrides, wanted)])
    chosen = expanded[: len(overrides)]
    data = config.to_plain_data(cfg)
    require(
        data["num_seeds"] >= 1 and not data["resume"],
        "resume",
        data["resume"],
        "is for a single training, not for a sweep",
    )
    numbers = find_numbers(data)
    priors, fixed, lacks = _resolve_priors(data, numbers, bare, wanted)
    if lacks and not skips:
        raise next(iter(lacks.values()))
    priors = {_find_source(cfg, option): prior for option, prior in priors.items()}
    fixed = {_find_source(cfg, option): value for option, value in fixed.items()}
    for option, value in fixed.items():
        _update(cfg, option, value)
    data = config.to_plain_data(cfg)
    if "???" in str(config.to_savable_data(cfg)):
        missing = config_file.find_missing(config.to_savable_data(cfg))
        raise OptionError(
            f"{missing[0] if missing else 'an option'}: must be a plain value, not an environment variable"
        )
    numbers = find_numbers(data) if fixed else numbers
    found = [_build_parameter(cfg, data, numbers, option, prior) for option, prior in priors.items()]
    names = {one.name for one, _ in found}  # parameters take precedence over references to other parameters
    found = [(one, tuple(at for at in places if at == one.name or at not in names)) for one, places in found]
    _check_ends(numbers, found)
    _check_categories(data, found)
    return data, (*chosen, *(f"{option}={value}" for option, value in fixed.items())), found, lacks


def _is_group(name: str) -> bool:
    """Return whether a name denotes a config group."""
    return resolve_group(name)[0] in GROUPS


def _build_group(name: str, values: Any, overrides: Sequence[str]) -> Parameter:
    """Return the parameter of a config group, which begins at the override's choice, or at the first value."""
    named = f"{SPACE}.{name}"
    of_task = resolve_group(name)[0] in TASK_GROUPS
    require(not of_task, named, values, "cannot be searched, because scores of different tasks are not comparable")
    right = isinstance(values, Categories) and all(isinstance(one, str) for one in values.values)
    some = ",".join([*find_choices(resolve_group(name)[0])][:2])
    require(right, named, values, f"must be a list of names, such as {named}=[{some}]")
    first = next((one.partition("=")[2] for one in overrides if one.partition("=")[0] == name), values.values[0])
    require(first in values.values, name, first, f"must be one of the values of {named}")
    others = (one for one in values.values if one != first)
    return Categories((first, *others)).to_parameter(name, first)


def require_same_space(given: Sequence[str], kept: SweepDefinition, problem: str) -> None:
    """Check that the given space is the one of an existing sweep.

    Raises:
        OptionError: If the prior of an option differs; the message names the first one.
    """
    bare, wanted = _parse_space_overrides(given)
    there: dict[str, Any] = {
        one.name: Categories(one.categories) if one.categories else one.prior for one in kept.space.parameters
    }
    asked: dict[str, Any] = {}
    for name in [name for name in wanted if _is_group(name)]:
        chosen = wanted.pop(name)
        known, asked[name] = there.get(name), chosen
        if isinstance(known, Categories) and isinstance(chosen, Categories) and set(known.values) == set(chosen.values):
            asked[name] = known  # the first choice may differ
    for variant in kept.variants:
        resolved, _, _ = _resolve_priors(variant.base, find_numbers(variant.base), bare, wanted)
        names = {place: name for name, places in variant.places.items() for place in places}
        asked |= {names.get(option, option): prior for option, prior in resolved.items()}
    for name in [*there, *asked]:
        if asked.get(name) != there.get(name):
            has, wants = (space.get(name, "not searched") for space in (there, asked))
            raise OptionError(f"{problem}: has another search space: there {name} is {has}, here {wants}")


def _parse_space_overrides(given: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return the value of space= itself, and the priors, categories and numbers of space.NAME=, by name."""
    asked: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        require(bool(equals), name, value, f"must be {SPACE}.NAME=PRIOR")
        asked[name] = config.parse_overrides([f"value={value}"])[0].value()
    bare = asked.pop(SPACE, None)
    require(bare in (None, {}), SPACE, bare, "must be {}, which ignores the declared priors; or give space.NAME=")
    return bare, {name.removeprefix(f"{SPACE}."): _parse_prior(name, value) for name, value in asked.items()}


def _resolve_priors(
    data: Mapping[str, Any], numbers: Mapping[str, Any], bare: Any, wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, OptionError]]:
    """Return the priors and categories of searched options, the fixed numbers, both by option, and errors by name.

    A prior in place of a number in the configuration is always searched; a declared prior only if `bare` is
    not {}. The errors are for wanted names that match no option.
    """
    found = {option: find_prior(value, {} if bare == {} else declared) for option, (value, declared) in numbers.items()}
    priors: dict[str, Any] = {option: prior for option, prior in found.items() if prior is not None}
    fixed: dict[str, Any] = {}
    lacks: dict[str, OptionError] = {}
    for name, prior in wanted.items():
        option = find_option(data, name)
        if option is None:
            refuse_peer_name(name, [*_list_numbers(data)], f"{SPACE}.")
            names = {f"{SPACE}.{one}" for one in _list_searchable(data)}
            lacks[name] = unknown_name_error("parameter", f"{SPACE}.{name}", names, f"{config.TRAIN_COMMAND} --cfg job")
            continue
        value = config_file.lookup(data, option)
        numeric = is_number(value) or option in BUDGET_OPTIONS or is_prior(value)
        if isinstance(prior, Categories) and numeric and all(map(is_number, prior.values)):
            prior = Choice(prior.values)
        if isinstance(prior, Categories):
            require_category_place(option, value)
        else:
            _require_number(name, value, numeric)
        priors.pop(option, None)
        if isinstance(prior, (Prior, Categories)):
            priors[option] = prior
        else:
            fixed[option] = prior
    return priors, fixed, lacks


def _parse_prior(name: str, value: Any) -> Any:
    """Return the prior, categories or number of an override."""
    if is_number(value):
        return value
    if isinstance(value, list):
        return _make_categories(name, value)
    try:
        found: Any = OmegaConf.to_container(OmegaConf.create({"value": value}), resolve=True)
    except OmegaConfBaseException as error:
        raise OptionError(f"{name}={value}: {str(error).splitlines()[0]}") from error
    node = found["value"]
    wanted = "must be a prior, such as ${log_uniform:1e-5,1e-2}, a list of values, or a number"
    require(isinstance(node, dict), name, value, wanted)
    if node.get("_target_") == f"{nodes.PRIORS_PREFIX}Choice":
        return _make_categories(name, node["values"])
    return parts.instantiate(node, name, Prior)


def _add_budget_overrides(overrides: Sequence[str], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield an override that sets a searched budget to the middle of its prior, unless the budget is given.

    The override makes it the only budget.
    """
    for name in BUDGET_OPTIONS:
        prior = wanted.get(name)
        if isinstance(prior, Prior) and not any(one.startswith(f"{name}=") for one in overrides):
            yield f"{name}={Parameter(name, prior, 0.0 if name == MINUTES else 0).decode(0.5)}"


def _find_source(cfg: DictConfig, option: str) -> str:
    """Return the option to which an option refers if it lies in a node that refers to another node."""
    for place, source in config.find_references(cfg.agent, "agent"):
        if option.startswith(f"{place}."):
            return _find_source(cfg, source + option.removeprefix(place))
    return option


def find_option(data: Mapping[str, Any], name: str) -> str | None:
    """Return the option with the given name, which may be short; None if there is none.

    The name is looked up in the agent of the workflow, in the workflow, in the group `agent` and as a full
    name, in this order. Otherwise, it may be the ending of the name of a number or of another option.
    """
    for option in (f"{WORKFLOW_PREFIX}agent.{name}", f"{WORKFLOW_PREFIX}{name}", f"agent.{name}", name):
        if config_file.lookup(data, option, SEARCH_MARKER) != SEARCH_MARKER:
            return option
    return find_by_ending(name, [*_list_numbers(data)]) or find_by_ending(name, [*_list_options(data)])


def _require_number(name: str, value: Any, numeric: bool) -> None:
    """Raise OptionError if an option that is to be searched with a prior is not a number."""
    of = [one for one in value if one != "_target_"] if isinstance(value, dict) else []
    instead = f"; {SPACE}.{name}.{of[0]} is one" if of and is_number(value[of[0]]) else ""
    instead = instead or f"; give a list of values, {SPACE}.{name}=[...]" * (not isinstance(value, dict))
    wanted = f"is not a number; only numbers have priors{instead}"
    require(numeric, f"{SPACE}.{name}", to_printable(value), wanted)


def _make_categories(name: str, values: Sequence[Any]) -> Categories | Choice:
    """Return the categories of an option or, for a budget, the prior of its values."""
    right = len(values) >= 2 and len({json.dumps(one) for one in values}) == len(values)
    right = right and all(map(is_value, values))
    given = f"{SPACE}.{name.removeprefix(f'{SPACE}.')}"
    wanted = "must be at least two different values: numbers, strings, true, false, null or lists of these"
    require(right, given, values, wanted)
    is_budget = name.removeprefix(f"{SPACE}.") in BUDGET_OPTIONS and all(map(is_number, values))
    return Choice(tuple(values)) if is_budget else Categories(tuple(values))


def _list_searchable(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of all options that can be searched, as short as possible."""
    yield from BUDGET_OPTIONS
    yield from map(shorten_name, [*_list_numbers(data), *_list_options(data)])


def _list_numbers(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of a configuration that are numbers; within the agent, only those of its workflow."""
    for place, value in nodes.iterate_leaves(data, ""):
        if is_number(value) and "[" not in place and (place.startswith(WORKFLOW_PREFIX) or place[:6] != "agent."):
            yield place


def _list_options(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of the agent's workflow, of the environment and of the problem that are no components."""
    for place, _ in nodes.iterate_leaves(data, ""):
        option = place.partition("[")[0]  # the option of a list element
        if option.startswith((WORKFLOW_PREFIX, *CATEGORY_PLACES[1:])) and not option.endswith("._target_"):
            yield option


def _build_parameter(
    cfg: DictConfig, data: Mapping[str, Any], numbers: Mapping[str, Any], option: str, prior: Any
) -> tuple[Parameter, tuple[str, ...]]:
    """Return a parameter and all places that receive its value, after references to it are resolved."""
    marked = copy.deepcopy(cfg)
    _update(marked, option, SEARCH_MARKER)
    places = tuple(
        place for place, value in nodes.iterate_leaves(config.to_plain_data(marked), "") if value == SEARCH_MARKER
    )
    default = config_file.lookup(data, option)
    if isinstance(prior, Categories):
        return prior.to_parameter(option, default), places
    for place in places:
        if place in numbers:
            value, declared = numbers[place]
            default = value if is_number(value) else declared.get("default", sum(prior.bounds) / 2)
    default = float(default) if option == MINUTES else default
    if isinstance(prior, Choice) and default not in prior.values:
        first = prior.values[0]
        default = round(first) if isinstance(default, int) else first
    return Parameter(option, prior, default), places


def _update(cfg: DictConfig, option: str, value: Any) -> None:
    """Set an option, also if its node is given by a resolver such as ${linear:1e-3,0}."""
    node = option.rpartition(".")[0]
    if isinstance(resolved := OmegaConf.select(cfg, node), dict):
        OmegaConf.update(cfg, node, resolved)
    OmegaConf.update(cfg, option, value)


def _check_ends(numbers: Mapping[str, Any], found: Sequence[tuple[Parameter, Sequence[str]]]) -> None:
    """Raise OptionError if the prior of a number exceeds the range of that number."""
    for one, places in found:
        low, high = -math.inf, math.inf
        for place in places:
            _, declared = numbers.get(place, (None, {}))
            low, high = declared.get("low", low), declared.get("high", high)
        name = f"{SPACE}.{shorten_name(one.name)}"
        if isinstance(one.prior, Choice) and isinstance(one.default, int):
            require(all(x == round(x) for x in one.prior.values), name, one.prior, "must be whole numbers")
        for end in () if one.categories else one.prior.bounds:
            require(low <= end <= high, name, one.prior, f"must be between {low:g} and {high:g}")


def _check_categories(data: Mapping[str, Any], found: Sequence[tuple[Parameter, Sequence[str]]]) -> None:
    """Raise OptionError if no workflow can be built with one of the categories."""
    for one, places in found:
        for value in one.categories:
            runs.assemble(Variant(data, (), {one.name: tuple(places)}).set_values({one.name: value}))


def build_sampler_node(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration node of a sampler with the given options; raise OptionError if one is invalid."""
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
