"""Configuration: Hydra composes YAML files, and dataclasses supply every default and the check of every name."""

import contextlib
import dataclasses
import importlib
import itertools
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hydra import compose, initialize
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from evorl.errors import OptionError, require, unknown
from evorl.training.discovery import GROUPS, SHIPPED, check_choices, folders, group_of, placed
from evorl.types import Prior

GET_CLASS = "hydra.utils.get_class"  # the target for a class itself
TRAIN = "python -m evorl.train"
GIVEN = ("env", "observation_space", "action_space")  # fields that make fills in


class Defaults(FileConfigSource):
    """Files whose nodes with a _target_ are filled up with the defaults of the dataclass that it names.

    Beside hyperparameters stands their space: the declared priors, and what the file says of it.
    """

    @staticmethod
    def scheme() -> str:
        return "evorl"

    def load_config(self, config_path: str) -> ConfigResult:
        result = super().load_config(config_path)
        whole = OmegaConf.create(_filled(OmegaConf.to_container(result.config)))
        if isinstance(whole, DictConfig) and isinstance(whole.get("hyperparams"), DictConfig):
            priors = _priors(OmegaConf.to_container(whole.hyperparams))
            whole.space = OmegaConf.merge(priors, whole.get("space") or {})
        return dataclasses.replace(result, config=whole)


class SearchPath(SearchPathPlugin):
    """Looks for configurations in ./configs and then in those that evorl ships."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in folders():
            search_path.append("evorl", f"evorl://{folder}")


for plugin in (Defaults, SearchPath):
    Plugins.instance().register(plugin)


def _prior(name: str, *values: str) -> Callable[..., dict[str, Any]]:
    """What a resolver such as ${log_uniform:1e-5,1e-2} stands for."""
    return lambda *given: {"_target_": f"evorl.priors.{name}", **dict(zip(values, given, strict=True))}


def _searched(hyperparams: DictConfig, space: DictConfig) -> dict[str, Any]:
    """Hyperparameters with a space's priors in place of their defaults; what was given as a prior itself stays."""
    merged: Any = OmegaConf.to_container(hyperparams, resolve=True)
    return _with_priors(merged, OmegaConf.to_container(space, resolve=True), str(space._get_full_key(None)))


def _with_priors(node: dict[str, Any], space: Any, place: str) -> dict[str, Any]:
    defaults, merged = _schema(_import(node["_target_"])), dict(node)
    for name, prior in space.items():
        given = node.get(name)
        if name not in node:
            raise unknown("hyperparameter", f"{place}.{name}", [f"{place}.{one}" for one in node if one != "_target_"])
        if isinstance(given, dict) and dataclasses.is_dataclass(_import(given["_target_"])) and "_target_" not in prior:
            merged[name] = _with_priors(given, prior, f"{place}.{name}")
        elif not isinstance(given, dict):
            option = f"{place}.{name}".replace("space", "hyperparams", 1)
            require(given == defaults[name], option, given, f"is searched; fix it with {place}.{name}={given}")
            merged[name] = prior
    return merged


def _priors(node: Any) -> dict[str, Any]:
    """The declared priors of all numbers in a node of hyperparameters that are at their default, nested as it is."""
    target = _import(node["_target_"]) if "_target_" in node else None
    fields = {field.name: field for field in dataclasses.fields(target)} if dataclasses.is_dataclass(target) else {}
    found = {}
    for name, value in node.items():
        if isinstance(value, dict):
            found |= {name: inner} if (inner := _priors(value)) else {}
        elif name in fields and value == fields[name].default and (prior := fields[name].metadata.get("prior")):
            found[name] = _node(prior)
    return found


def _node(part: Any) -> Any:
    """A part as the node that describes it."""
    if isinstance(part, tuple):
        return [_node(value) for value in part]
    if not dataclasses.is_dataclass(part):
        return part
    values = {field.name: _node(getattr(part, field.name)) for field in dataclasses.fields(part)}
    return {"_target_": f"{type(part).__module__}.{type(part).__qualname__}", **values}


RESOLVERS: dict[str, Callable[..., Any]] = {
    "uniform": _prior("Uniform", "low", "high"),
    "log_uniform": _prior("LogUniform", "low", "high"),
    "one_minus": _prior("OneMinus", "prior"),
    "neg": _prior("Neg", "prior"),
    "integer": _prior("Integer", "low", "high"),
    "choice": lambda *values: _prior("Choice", "values")(list(values)),
    "searched": _searched,
}
for resolver, function in RESOLVERS.items():
    OmegaConf.register_new_resolver(resolver, function, replace=True)


def _filled(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    node = {name: _filled(value) for name, value in node.items()}
    target = _import(node["_target_"]) if "_target_" in node else None
    return _schema(target) | node if dataclasses.is_dataclass(target) else node


def _schema(cls: Any) -> dict[str, Any]:
    """A dataclass as a node: its _target_ and every default; fields without one are left for the file to give."""
    node: dict[str, Any] = {"_target_": f"{cls.__module__}.{cls.__qualname__}"}
    for field in dataclasses.fields(cls):
        if field.name in GIVEN:
            continue
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            value = "???" if field.default is dataclasses.MISSING else field.default
        if dataclasses.is_dataclass(value):
            value = _schema(type(value))
        node[field.name] = dict(value) if isinstance(value, Mapping) else value
    return node


def _import(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def targets(node: Any) -> Iterator[tuple[str, bool]]:
    """Everything that a node would import, and whether it would be called."""
    if isinstance(node, dict):
        target = node.get("_target_")
        if target is not None:
            yield (str(node.get("path")), False) if target == GET_CLASS else (str(target), True)
        node = list(node.values())
    if isinstance(node, list):
        for value in node:
            yield from targets(value)


def is_trusted(target: str, called: bool, packages: Sequence[str] = ()) -> bool:
    """Whether a target is a class of evorl, of one of the packages, or named in ./configs; or of evosax, not called.

    evosax's constructors unpickle files.
    """
    package = target.partition(".")[0]
    if package == "evorl" or (package == "evosax" and not called):
        with contextlib.suppress(ImportError, AttributeError):
            found = _import(target)
            return isinstance(found, type) and found.__module__.partition(".")[0] == package
        return False
    own = (path for folder in folders() if folder != SHIPPED for path in folder.rglob("*.yaml"))
    return package in packages or any(target in path.read_text(encoding="utf-8").split() for path in own)


def load(overrides: Sequence[str]) -> DictConfig:
    """Composes a configuration; raises OptionError where an override has a wrong name or value."""
    check_choices(list(overrides))
    with initialize(None, version_base="1.3"):
        try:
            cfg = compose("config", placed(overrides))
        except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:  # the last two are Hydra's too
            raise _explain(placed(overrides), error) from error
        _check_experiment(overrides)
        return cfg


def _check_experiment(overrides: Sequence[str]) -> None:
    """Raises OptionError where the experiment sets an option that what is chosen beside it does not have."""
    given = [one for one in overrides if group_of(one.partition("=")[0])[0] in GROUPS]
    experiment = next((one for one in given if one.startswith("experiment=")), "experiment=null")
    if experiment == "experiment=null" or len(given) == 1:
        return
    try:
        cfg = compose("config", placed(given), return_hydra_config=True)
        choices = {group: name for group, name in cfg.hydra.runtime.choices.items() if group_of(group)[0] in GROUPS}
        alone = compose("config", [f"{group}={name}" for group, name in choices.items() if group != "experiment"])
    except (HydraException, OmegaConfBaseException):  # of a choice that only goes with the experiment
        return
    strange = list(_strange(cfg, alone))
    for one in given:
        for option in strange:
            if one != experiment and one.startswith(option.split(".")[0]):
                raise OptionError(f"{one}: {experiment} sets {option}, which this does not have")


def _strange(node: DictConfig, alone: DictConfig, prefix: str = "") -> Iterator[str]:
    """Of every part in both, the names that only node gives it."""
    for name, value in node.items_ex(resolve=False):
        if name not in alone:
            if "_target_" in alone:
                yield f"{prefix}{name}"
        elif isinstance(value, DictConfig) and isinstance(inner := alone._get_node(name), DictConfig):
            yield from _strange(value, inner, f"{prefix}{name}.")


def _explain(overrides: Sequence[str], error: Exception) -> OptionError:
    """The one line about a composition that failed: the first override whose name is not known."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException:
        wrong = next((one for one in overrides if "=" not in one and not one.startswith("~")), None)
        reason = "give options as name=value" if wrong else str(error).splitlines()[0]
        return OptionError(f"{wrong or ' '.join(overrides)}: {reason}")
    chosen = [str(one.input_line) for one in parsed if group_of(one.key_or_group)[0] in GROUPS and not one.is_delete()]
    try:
        known = dict(paths(compose("config", chosen)))
    except HydraException as wrong:  # such as the selection of an agent that selects nothing
        found = re.match(r"Could not override '(.*?)@(.*?)'", str(wrong))
        return OptionError(f"{found[1]}: {found[2]} has no such part" if found else str(wrong).splitlines()[0])
    for override in parsed:
        if group_of(override.key_or_group)[0] not in (*GROUPS, *known):
            names = [name for name in known if not name.endswith("._target_")]
            return unknown("option", override.key_or_group, names, " ".join([TRAIN, *chosen, "--cfg job"]))
    return OptionError(str(error).splitlines()[0])


def sweep(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The overrides of each run of a multirun, in Hydra's order."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    lines = [
        [f"{one.get_key_element()}={value}" for value in one.sweep_string_iterator()]
        if one.is_sweep_override()
        else [str(one.input_line)]
        for one in parsed
    ]
    yield from map(list, itertools.product(*lines))


def paths(node: DictConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted name of a configuration with its value."""
    for name, value in node.items_ex(resolve=False):
        yield f"{prefix}{name}", value
        if isinstance(value, DictConfig) and not value._is_none() and not value._is_missing():
            yield from paths(value, f"{prefix}{name}.")


def label(node: DictConfig) -> str:
    """What an environment is called in titles and folders: its name, or its class around the name of its inner one."""
    if "name" in node:
        return str(node.name)
    outer = str(node.get("_target_")).rpartition(".")[2]
    return f"{outer}-{label(node.inner)}" if isinstance(node.get("inner"), DictConfig) else outer


def make(node: Any, name: str, **given: Any) -> Any:
    """Builds what a node describes, depth first; fields env, observation_space and action_space come from given.

    Raises OptionError where a value is missing or not of the type that the dataclass declares.
    """
    if isinstance(node, DictConfig):
        node = OmegaConf.to_container(node, resolve=True)
    if isinstance(node, list):
        return tuple(make(value, f"{name}[{i}]", **given) for i, value in enumerate(node))
    if not isinstance(node, dict):
        return node
    parts = {key: make(value, f"{name}.{key}", **given) for key, value in node.items() if key != "_target_"}
    if "_target_" not in node:
        return parts
    try:
        target: Any = _import(node["_target_"])
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise OptionError(f"{name}._target_={node['_target_']}: names nothing that can be imported") from error
    if isinstance(target, type) and dataclasses.is_dataclass(target):
        hints = typing.get_type_hints(target)
        fields = {field.name for field in dataclasses.fields(target)}
        for key, value in parts.items():
            if key not in fields:
                raise unknown("option", f"{name}.{key}", fields)
            parts[key] = _typed(value, hints[key], f"{name}.{key}")
        parts |= {key: value for key, value in given.items() if key in fields}
    try:
        return target(**parts)
    except OptionError as error:  # which knows the field, not where it stands
        raise OptionError(f"{name}.{error}" if re.split("[.=]", str(error))[0] in parts else str(error)) from error


def references(node: DictConfig, place: str) -> Iterator[tuple[str, str]]:
    """Of every node that stands for another one, where it is and where the other one is, which is what was given."""
    for path, value in paths(node, f"{place}."):
        if isinstance(value, str) and (found := re.match(r"(?:\$\{searched:)?\$\{(\.*)([\w.]+)\}", value)):
            dots, target = found.groups()
            outer = path.split(".")[: -len(dots)] if dots else []
            yield path, ".".join([*outer, target])


def part(value: Any, protocol: type, name: str) -> Any:
    """value; raises OptionError where it does not follow the protocol, with what it lacks."""
    if isinstance(value, protocol):
        return value
    if type(value).__module__ == "builtins":
        raise OptionError(f"{name}={value}: must be a part with a _target_, {protocol.__name__}")
    members = {one for cls in protocol.__mro__ for one in (*vars(cls), *vars(cls).get("__annotations__", {}))}
    lacking = sorted(one for one in members if not one.startswith("_") and not hasattr(value, one))
    raise OptionError(f"{name}={type(value).__name__}: has no {', '.join(lacking)}, as {protocol.__name__} needs")


def _typed(value: Any, hint: Any, name: str) -> Any:
    """value as its field declares it: whole floats pass for int, and int for float; nothing else is converted."""
    if value == "???":
        raise OptionError(f"{name}: must be given")
    wanted: Any = typing.get_origin(hint) or hint
    if wanted is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if wanted is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Prior) and hint not in (Any, Prior):
        raise OptionError(f"{name}={value}: a prior can stand for a hyperparameter only")
    if getattr(wanted, "_is_protocol", False):
        return part(value, wanted, name)
    if dataclasses.is_dataclass(wanted) and not isinstance(value, wanted):
        raise OptionError(f"{name}={type(value).__name__}: must be {wanted.__name__}")
    checked = wanted in (int, float, bool, str, tuple, Mapping) and not isinstance(wanted, types.UnionType)
    if checked and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
        raise OptionError(f"{name}={value}: must be of type {'list' if wanted is tuple else wanted.__name__}")
    return value
