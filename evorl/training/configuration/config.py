"""Configuration: Hydra composes YAML files; dataclasses supply all defaults and check all names."""

import builtins
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from antlr4.error.Errors import RecognitionException
from hydra import compose
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from evorl.errors import OptionError, is_number, require, unknown_name_error
from evorl.training.configuration import nodes, short_names
from evorl.training.configuration.choices import TABLE, read_table
from evorl.training.configuration.discovery import (
    GROUPS,
    check_choices,
    find_choices,
    find_config_folders,
    resolve_group,
    split_suite_name,
    to_hydra_overrides,
)
from evorl.training.configuration.hydra_internals import FileConfigSource, get_full_key, get_node, initialize
from evorl.training.configuration.nodes import BUILD_SECTIONS, PRIORS_PREFIX, iterate_leaves
from evorl.training.configuration.targets import import_target

ENV_VARIABLE_MARK = "what an environment variable holds is not saved"
TRAIN_COMMAND = "python -m evorl.train"
PARSE_ERRORS = (HydraException, RecognitionException, ValueError, RecursionError)  # exceptions of Hydra's parser


LEARNERS = {  # places of the numbers of learners that share the budget of a workflow
    "PBT": ["population.size"],
    "PAIRED": ["num_students"],
    "League": ["roster.main", "roster.main_exploiters", "roster.league_exploiters"],
}
COMPOSITION_ERRORS = (*PARSE_ERRORS, OmegaConfBaseException, TypeError)  # Hydra raises TypeError, too


class DefaultsSource(FileConfigSource):
    """Hydra source of files and tables that fills each node with a _target_ with the defaults of its dataclass.

    The name of a suite may be followed by the name of an environment: env/gymnax/CartPole-v1 is
    env/gymnax.yaml with this name.
    """

    @staticmethod
    def scheme() -> str:
        """Return the prefix of the paths of such files."""
        return "evorl"

    def load_config(self, config_path: str) -> ConfigResult:
        """Load a choice, with all defaults."""
        group, _, choice = config_path.partition("/")
        suite = None if self._is_choice(config_path) else split_suite_name(group, choice)
        place = f"{group}/{suite[0]}" if suite else config_path
        entry = None if super().is_config(place) else self._find_entry(place)
        if entry is None:
            try:
                result = super().load_config(place)
            except yaml.YAMLError as error:
                problem = " ".join(str(error).split())
                raise OptionError(f"{group}={choice}: {place}.yaml is not valid YAML: {problem:.300}") from error
        else:
            result = ConfigResult(self.provider, self.full_path(), OmegaConf.create(entry), {"package": None})
        whole = OmegaConf.create(nodes.fill_defaults(OmegaConf.to_container(result.config)))
        if suite and isinstance(whole, DictConfig):
            whole.name = suite[1]
        return dataclasses.replace(result, config=whole)

    def is_config(self, config_path: str) -> bool:
        """Return whether there is such a file, table entry or environment of a suite."""
        group, _, choice = config_path.partition("/")
        suite = split_suite_name(group, choice)
        return self._is_choice(config_path) or (suite is not None and self._is_choice(f"{group}/{suite[0]}"))

    def list(self, config_path: str, results_filter: ObjectType | None) -> "builtins.list[str]":
        """Return the groups and choices in a folder."""
        found = super().list(config_path, results_filter)
        entries = [] if results_filter == ObjectType.GROUP else read_table(Path(self.path, config_path, TABLE))
        return sorted({*found, *entries} - {Path(TABLE).stem})

    def _is_choice(self, config_path: str) -> bool:
        return super().is_config(config_path) or self._find_entry(config_path) is not None

    def _find_entry(self, config_path: str) -> str | None:
        group, _, name = config_path.rpartition("/")
        return read_table(Path(self.path, group, TABLE)).get(name)


class SearchPath(SearchPathPlugin):
    """Hydra search path: ./configs, then the configurations shipped with evorl."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the configuration folders to Hydra's search path."""
        for folder in find_config_folders():
            search_path.append("evorl", f"evorl://{folder}")


for plugin in (DefaultsSource, SearchPath):
    Plugins.instance().register(plugin)


def _make_prior_resolver(name: str, *values: str) -> Callable[..., dict[str, Any]]:
    """Return the resolver of a prior such as ${log_uniform:1e-5,1e-2}."""
    return lambda *given: {"_target_": f"{PRIORS_PREFIX}{name}", **dict(zip(values, given, strict=True))}


def _make_schedule_resolver(name: str) -> Callable[..., dict[str, Any]]:
    """Return the resolver of a schedule such as ${linear:1e-3,0,100_000}.

    Without the last number, the schedule lasts for the whole training.
    """

    def resolve(*given: Any, _parent_: Any, _root_: Any) -> dict[str, Any]:
        resolver = f"${{{name}:{','.join(map(str, given))}}}"
        wanted = f"must be ${{{name}:start,end}} for the whole training, or ${{{name}:start,end,env_steps}}"
        require(len(given) in (2, 3), "schedule", resolver, wanted)
        return nodes.make_schedule_node(name, given, _resolve_learner_steps(_parent_=_parent_, _root_=_root_))

    return resolve


def _resolve_learner_steps(*, _parent_: Any, _root_: Any) -> Any:
    """Return the env steps that the learner of this schedule takes in the whole training; inf without such a budget."""
    env_steps = _root_.get("env_steps")
    if env_steps is None:
        return math.inf
    count, agent, place = 1, OmegaConf.select(_root_, "agent"), get_full_key(_parent_).split(".")[1:]
    while OmegaConf.is_dict(agent) and place[:1] == ["inner"]:  # agent.inner.workflow is the learner of agent.workflow
        count, agent, place = count * _count_learners(agent.get("workflow")), agent.get("inner"), place[1:]
    return env_steps / count if count > 1 and is_number(env_steps) else env_steps  # a sweep has a mark for a number


def _count_learners(node: Any) -> int:
    """Return the number of equal learners between which a workflow divides its env steps.

    Args:
        node: Node of the workflow.
    """
    target = str(OmegaConf.select(node, "_target_")).rpartition(".")[2] if OmegaConf.is_dict(node) else ""
    found = [OmegaConf.select(node, place, throw_on_missing=False) for place in LEARNERS.get(target, ())]
    return max(sum(x for x in found if isinstance(x, int)), 1)


RESOLVERS: dict[str, Callable[..., Any]] = {
    "uniform": _make_prior_resolver("Uniform", "low", "high"),
    "log_uniform": _make_prior_resolver("LogUniform", "low", "high"),
    "one_minus": _make_prior_resolver("OneMinus", "prior"),
    "neg": _make_prior_resolver("Neg", "prior"),
    "integer": _make_prior_resolver("Integer", "low", "high"),
    "power_of_two": _make_prior_resolver("PowerOfTwo", "low", "high"),
    "choice": lambda *values: _make_prior_resolver("Choice", "values")(list(values)),
    "fixed": _make_prior_resolver("Fixed", "value"),
    "learner_steps": _resolve_learner_steps,
    "linear": _make_schedule_resolver("linear"),
    "cosine": _make_schedule_resolver("cosine"),
}
for resolver, function in RESOLVERS.items():
    OmegaConf.register_new_resolver(resolver, function, replace=True)


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Compose a configuration from overrides with full or short names; see `compose_expanded` for its errors."""
    return compose_expanded(overrides)[0]


def compose_expanded(overrides: Sequence[str]) -> tuple[DictConfig, list[str]]:
    """Compose a configuration from overrides with full or short names (see `short_names`).

    Args:
        overrides: Overrides name=value.

    Returns:
        The configuration, and the overrides with full option names.

    Raises:
        OptionError: An override has an invalid name or value.
    """
    check_choices(list(overrides))
    expanded = list(overrides)
    with initialize():
        try:
            cfg = compose("config", to_hydra_overrides(overrides))
        except COMPOSITION_ERRORS as error:
            expanded = _expand_short_names(overrides)
            if expanded == list(overrides):
                raise _explain_error(to_hydra_overrides(overrides), error) from error
            try:
                cfg = compose("config", to_hydra_overrides(expanded))
            except COMPOSITION_ERRORS as wrong:
                raise _explain_error(to_hydra_overrides(expanded), wrong) from wrong
        _check_experiment(overrides)
        _check_additions(overrides)
        _require_values(cfg)
        wrappers = _select(cfg, "wrappers")  # None if it cannot be resolved, which `to_plain_data` refuses
        resolve_wrappers(OmegaConf.to_container(wrappers) if OmegaConf.is_config(wrappers) else wrappers or [])
        _tell_replaced(expanded, cfg)
        return cfg, expanded


def _require_values(cfg: DictConfig) -> None:
    """Raise OptionError if an option of the training is ???; those of components are checked where they are built."""
    for name, value in iterate_leaves(OmegaConf.to_container(cfg), ""):
        if value == "???" and (name in BUILD_SECTIONS or not name.startswith(BUILD_SECTIONS)):
            raise OptionError(f"{name}: must be given")


def _expand_short_names(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with full option names, or unchanged if the choices alone cannot be composed."""
    choices = [one for one in overrides if resolve_group(one.partition("=")[0].lstrip("+~"))[0] in GROUPS]
    try:
        names = [name for name, _ in iterate_paths(compose("config", to_hydra_overrides(choices)))]
    except COMPOSITION_ERRORS:
        return list(overrides)
    searched = [name for name in names if not name.endswith("._target_")]
    return short_names.expand_overrides(overrides, searched, choices)


def _check_additions(overrides: Sequence[str]) -> None:
    """Raise OptionError if +name=value adds an option that nothing reads, or ~name removes a training option."""
    for one in overrides:
        name = one.lstrip("~").partition("=")[0]
        removes = one.startswith("~") and "." not in name and resolve_group(name)[0] not in GROUPS
        require(not removes, name, "removed", "must have a value; options of a training cannot be removed")
    names = [one.lstrip("+").partition("=")[0] for one in overrides if one.startswith("+")]
    known = {"hydra", *compose("config")} if names else ()
    for name in names:
        if resolve_group(name)[0] not in GROUPS and name.partition(".")[0] not in known:
            raise unknown_name_error("option", name, known)


def _tell_replaced(overrides: Sequence[str], cfg: DictConfig) -> None:
    """Print to stderr if an override replaces a schedule or a prior of a file by a number."""
    numbers = [one for one in overrides if one.startswith("agent.") and is_number(_select(cfg, one.partition("=")[0]))]
    if not numbers:
        return
    before = compose("config", to_hydra_overrides([one for one in overrides if one not in numbers]))
    for override in numbers:
        node = _select(before, override.partition("=")[0])
        if isinstance(node, Mapping | DictConfig) and _stands_for_number(str(node.get("_target_"))):
            values = ", ".join(f"{key}={value}" for key, value in node.items() if key != "_target_")
            short_names.tell_once(f"{override}: replaces {_get_class_name(node)}({values})")


def _stands_for_number(target: str) -> bool:
    """Return whether a class, given by its full name, is a prior of evorl or a subclass of Schedule."""
    if target.startswith(PRIORS_PREFIX):
        return True
    from evorl.schedules import Schedule

    found = import_target(target) if target != "None" else None
    return isinstance(found, type) and issubclass(found, Schedule)


def _select(cfg: DictConfig, name: str) -> Any:
    """Return the value at a dotted name, or None if there is none or it cannot be resolved."""
    try:
        return OmegaConf.select(cfg, name)
    except OmegaConfBaseException:
        return None


def resolve_wrappers(given: Any) -> list[dict[str, Any]]:
    """Return the wrappers as complete nodes; raise OptionError if one is invalid."""
    require(isinstance(given, list), "wrappers", given, "must be a list, such as [sticky]")
    return [_resolve_wrapper(one) for one in given]


def _resolve_wrapper(given: Any) -> dict[str, Any]:
    """Return a wrapper as a complete node.

    It is given as a name, a name with options ({frames: {count: 2}}), or a complete node.
    """
    if isinstance(given, dict) and "_target_" in given:
        return given
    name, options = next(iter(given.items())) if isinstance(given, dict) and len(given) == 1 else (given, {})
    wanted = "must be names, each optionally with options: {frames: {count: 2}}"
    require(isinstance(name, str) and isinstance(options or {}, dict), "wrappers", given, wanted)
    known = find_choices("wrapper")
    if name not in known:
        raise unknown_name_error("wrapper", str(name), known, f"{TRAIN_COMMAND} --list")
    node = nodes.fill_defaults(known[name].read())
    own = [one for one in node if one not in ("_target_", "inner")]
    for option in options or {}:
        if option not in own:
            raise unknown_name_error("option", f"wrappers: {name}.{option}", own)
    return {option: value for option, value in (node | (options or {})).items() if option != "inner"}


def _check_experiment(overrides: Sequence[str]) -> None:
    """Raise OptionError if the experiment sets an option that another choice does not have."""
    given = [one for one in overrides if resolve_group(one.partition("=")[0])[0] in GROUPS]
    experiment = next((one for one in given if one.startswith("experiment=")), "experiment=null")
    if experiment == "experiment=null" or len(given) == 1:
        return
    try:
        cfg = compose("config", to_hydra_overrides(given), return_hydra_config=True)
        choices = {
            group: name for group, name in cfg.hydra.runtime.choices.items() if resolve_group(group)[0] in GROUPS
        }
        chosen = [f"{group}={name}" for group, name in choices.items() if name and group != "experiment"]
        alone = compose("config", chosen)
    except (HydraException, OmegaConfBaseException):  # a choice that is valid only together with the experiment
        return
    strange = list(_find_unknown_options(cfg, alone))
    for one in given:
        for option in strange:
            if one != experiment and one.startswith(option.split(".")[0]):
                raise OptionError(f"{one}: has no {option}, which {experiment} sets")


def _find_unknown_options(node: DictConfig, alone: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yield the names of the options that `node` adds to components that are in both configurations."""
    for name, value in node.items_ex(resolve=False):
        if name not in alone:
            if "_target_" in alone:
                yield f"{prefix}{name}"
        elif isinstance(value, DictConfig) and isinstance(inner := get_node(alone, name), DictConfig):
            yield from _find_unknown_options(value, inner, f"{prefix}{name}.")


def _explain_error(overrides: Sequence[str], error: Exception) -> OptionError:
    """Return a one-line error about a failed composition, if possible about the first override with an unknown name."""
    given = parse_overrides(overrides)
    chosen = [
        str(one.input_line) for one in given if resolve_group(one.key_or_group)[0] in GROUPS and not one.is_delete()
    ]
    try:
        known = dict(iterate_paths(compose("config", chosen)))
    except HydraException as wrong:  # for example, a selection for an agent without one
        found = re.match(r"Could not override '(.*?)@(.*?)'", str(wrong))
        return OptionError(f"{found[1]}: {found[2]} has no such component" if found else str(wrong).splitlines()[0])
    for override in given:
        if resolve_group(override.key_or_group)[0] not in (*GROUPS, *known):
            names = [name for name in known if not name.endswith("._target_")]
            command = re.sub(r"\+(\w+)@\S+?=", r"\1=", " ".join([TRAIN_COMMAND, *chosen, "--cfg job"]))
            return unknown_name_error("option", override.key_or_group, names, command)
    return OptionError(str(error).splitlines()[0])


def split_training_options(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the overrides into those of the training or that choose a file, and those of its agent or environment.

    Args:
        overrides: Overrides name=value.
    """
    with initialize():
        known = {"hydra", *compose("config")} - set(GROUPS)

    def is_of_training(override: str) -> bool:
        name = override.partition("=")[0].lstrip("+~")
        return resolve_group(name)[0] in GROUPS or name.partition(".")[0] in known

    return [one for one in overrides if is_of_training(one)], [one for one in overrides if not is_of_training(one)]


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides; raise OptionError if one is not of the form name=value."""
    parser, found = OverridesParser.create(), []
    for line in overrides:
        try:
            found += parser.parse_overrides([line])
        except PARSE_ERRORS as error:
            plain = "=" not in line and not line.startswith("~")
            reason = (
                "is not a folder, and options have the form name=value"
                if plain
                else f"{error}".partition("\n")[0] or "cannot be read"
            )
            raise OptionError(f"{line:.80}: {reason:.200}") from error
    return found


def expand_sweep(overrides: Sequence[str]) -> Iterator[list[str]]:
    """Yield the overrides of each run of a multirun, in Hydra's order."""
    lines = [
        [f"{one.get_key_element()}={value}" for value in one.sweep_string_iterator()]
        if one.is_sweep_override()
        else [str(one.input_line)]
        for one in parse_overrides(overrides)
    ]
    yield from map(list, itertools.product(*lines))


def to_plain_data(cfg: DictConfig) -> dict[str, Any]:
    """Return a configuration as plain data, with resolved interpolations and full class names.

    Raises:
        OptionError: A value cannot be resolved.
    """
    try:
        found: Any = nodes.expand_targets(OmegaConf.to_container(cfg, resolve=True))
        if "wrappers" in found:
            found["wrappers"] = resolve_wrappers(found["wrappers"])
    except OmegaConfBaseException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OptionError):  # a resolver may have raised it
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            raise cause from error
        raise OptionError(f"{error.full_key}: {str(error).partition(chr(10))[0]}") from error
    return found


def to_savable_data(cfg: DictConfig) -> dict[str, Any]:
    """Return the data of `to_plain_data` with ??? for each value from an environment variable.

    The reader of a saved configuration has to give these values again.
    """
    with _replace_env_resolver(lambda *_: ENV_VARIABLE_MARK):
        return _mask_env_values(to_plain_data(cfg))


@contextmanager
def _replace_env_resolver(get: Callable[..., Any]) -> Iterator[None]:
    OmegaConf.register_new_resolver("oc.env", get, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _mask_env_values(node: Any) -> Any:
    if isinstance(node, dict) and not any(ENV_VARIABLE_MARK in str(name) for name in node):
        return {name: _mask_env_values(value) for name, value in node.items()}
    return (
        [_mask_env_values(value) for value in node]
        if isinstance(node, list)
        else "???"
        if ENV_VARIABLE_MARK in str(node)
        else node
    )


def iterate_paths(node: DictConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted name of a configuration with its value."""
    for name, value in node.items_ex(resolve=False):
        yield f"{prefix}{name}", value
        if isinstance(value, DictConfig) and not value._is_none() and not value._is_missing():
            yield from iterate_paths(value, f"{prefix}{name}.")


def format_env_label(node: Mapping[str, Any]) -> str:
    """Return the label of an environment in titles and folder names.

    It is the name of the environment, or its class followed by the label of its inner environment.
    """
    if "name" in node:
        return str(node["name"])
    return (
        f"{_get_class_name(node)}-{format_env_label(node['inner'])}"
        if isinstance(node.get("inner"), Mapping)
        else _get_class_name(node)
    )


def format_title(data: Mapping[str, Any]) -> str:
    """Return the title of a training: its agent, and the environment or problem."""
    around = "".join(f"{_get_class_name(one)}-" for one in reversed(data.get("wrappers") or ()))
    return f"{data['agent']['name']} on {around}{format_env_label(data.get('env') or data['problem'])}"


def _get_class_name(node: Mapping[str, Any]) -> str:
    return str(node.get("_target_")).rpartition(".")[2]


def find_references(node: DictConfig, place: str) -> Iterator[tuple[str, str]]:
    """Yield the place of every node that refers to another node, and the place of that other node.

    The other node is where the user gave the value.
    """
    for path, value in iterate_paths(node, f"{place}."):
        if isinstance(value, str) and (found := re.match(r"\$\{(\.*)([\w.]+)\}", value)):
            dots, target = found.groups()
            outer = path.split(".")[: -len(dots)] if dots else []
            yield path, ".".join([*outer, target])
