"""Instantiation of components: frozen dataclasses from the plain data of a configuration.

A class of evorl must match the type of its field before it is instantiated. A field of type Any also accepts
a prior, Fixed or a schedule instead of a number. Objects of other packages are checked after instantiation.
"""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
from typing_extensions import get_protocol_members

from evorl.errors import OptionError, require, unknown_name_error
from evorl.priors import Fixed
from evorl.schedules import Schedule
from evorl.spaces import Discrete, groups
from evorl.training.configuration.targets import expand_target, require_target
from evorl.types import Agent, Env, MultiAgentActor, Prior, Problem

_TYPE_NAMES = {tuple: "list", types.NoneType: "null"}  # names of types in a configuration
AUTO = "auto"  # value of an option that depends on the machine
GET_CLASS = "hydra.utils.get_class"  # target of a node that stands for a class
TEAM_TARGET = "evorl.agents.team.Team"  # target of the agent that plays games
SINGLE_ACTION = Discrete(1)  # action space that is not of a game
CONTEXT_FIELDS = {  # fields that instantiate fills in, and the error if they are missing
    "env": "needs an environment, such as env=hopper",
    "problem": "needs a problem, such as problem=zdt1",
    "observation_space": "needs an environment, such as env=hopper",
    "action_space": "needs an environment, such as env=hopper",
}


def get_fields(part: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass, or of its class, that a user can set.

    The internal fields of flax modules are excluded.
    """
    own = ("parent", "name") if issubclass(part if isinstance(part, type) else type(part), nn.Module) else ()
    return [field for field in dataclasses.fields(part) if field.name not in own]


def instantiate(node: Any, name: str, hint: Any = Any, **given: Any) -> Any:
    """Instantiate a node for a field with type `hint`, with context fields such as env and its spaces from `given`.

    A field with "env" in its metadata gets the environment that this function makes of the given one. A field
    with "spaces" gets the spaces that this function makes of the given ones.

    Raises:
        OptionError: A value is missing, or does not match the type of its field.
    """
    return _convert(_instantiate(node, name, hint, given), hint, name)


def _instantiate(node: Any, name: str, hint: Any, given: dict[str, Any]) -> Any:
    if isinstance(node, list):
        of = (*typing.get_args(hint), Any)[0]
        return tuple(_instantiate(value, f"{name}[{i}]", of, given) for i, value in enumerate(node))
    if not isinstance(node, dict):
        return node
    if "_target_" not in node:
        of = _get_value_type(hint)
        return {key: _instantiate(value, f"{name}.{key}", of, given) for key, value in node.items()}
    target = _find_target(node, name)
    if _is_single_agent(target, hint) and groups(given.get("action_space", SINGLE_ACTION)):
        return _instantiate({"_target_": TEAM_TARGET, "agents": node}, name, hint, given)
    if node["_target_"] == GET_CLASS:
        if typing.get_origin(hint) is type:
            return target
        raise OptionError(f"{name}={node.get('path')}: must not be a class")
    ours = expand_target(node["_target_"]).startswith("evorl.")
    if ours and not _is_assignable(target, hint):
        raise OptionError(f"{name}={getattr(target, '__name__', node['_target_'])}: {_describe_expected(hint)}")
    nodes = {key: value for key, value in node.items() if key != "_target_"}
    if isinstance(target, type) and dataclasses.is_dataclass(target):
        hints = typing.get_type_hints(target)
        known = {field.name for field in get_fields(target)}
        for key in nodes:
            if key not in known:
                raise unknown_name_error("option", f"{name}.{key}", known)
        if not ours:  # its untyped fields accept any component of evorl
            hints = {key: object if one is Any else one for key, one in hints.items()}
        of_field = {field.name: _get_field_context(field, given) for field in get_fields(target)}
        parts = {key: instantiate(value, f"{name}.{key}", hints[key], **of_field[key]) for key, value in nodes.items()}
        parts |= {key: value for key, value in given.items() if key in known}
    else:
        parts = {str(key): _instantiate(value, f"{name}.{key}", Any, given) for key, value in nodes.items()}
    _require_signature(target, parts, name)
    try:
        return target(**parts)
    except OptionError as error:  # the error names the field, but not its place
        raise OptionError(f"{name}.{error}" if re.split("[.=]", str(error))[0] in parts else str(error)) from error


def _get_value_type(hint: Any) -> Any:
    """Return the type of the values of a mapping type, also within a union; Any for other types."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((typing.get_args(kind)[1] for kind in kinds if typing.get_origin(kind) is Mapping), Any)


def resolve_auto(node: Any) -> Any:
    """Return a configuration in which options of evorl's classes have the values that "auto" stands for.

    A field with "auto" in its metadata is such an option: its value is that function of the other options, on
    this machine.

    Args:
        node: Configuration, or a part of it.
    """
    if isinstance(node, list):
        return [resolve_auto(value) for value in node]
    if not isinstance(node, dict):
        return node
    node = {name: resolve_auto(value) for name, value in node.items()}
    target = str(node.get("_target_"))
    if AUTO in [value for value in node.values() if isinstance(value, str)] and target.startswith("evorl."):
        cls = require_target(target, "_target_")
        for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
            if "auto" in field.metadata and node.get(field.name) == AUTO:
                node[field.name] = field.metadata["auto"](node)
    return node


def make_task(data: Mapping[str, Any]) -> Env | Problem:
    """Make the wrapped environment, or the problem, that a configuration trains on.

    Raises:
        OptionError: The configuration is invalid.
    """
    if data.get("problem") is not None:
        around = [str(one["_target_"]).rpartition(".")[2] for one in data.get("wrappers") or ()]
        require(not around, "wrappers", around, "apply to environments, not to problems")
        return instantiate(data["problem"], "problem", Problem)
    require(data.get("env") is not None, "env", "null", "give an environment or a problem")
    return make_wrapped_env(data["env"], "env", data)


def make_eval_env(data: Mapping[str, Any]) -> Env | None:
    """Make the separate environment for evaluation, with the same wrappers; None if the configuration has none.

    Raises:
        OptionError: The configuration is invalid.
    """
    node = data.get("eval_env")
    why = "cannot be combined with a problem"
    require(node is None or data.get("problem") is None, "eval_env", "given", why)
    return None if node is None else make_wrapped_env(node, "eval_env", data)


def make_wrapped_env(node: Any, name: str, data: Mapping[str, Any]) -> Env:
    """Make an environment with the wrappers of a configuration; raise OptionError if it is invalid."""
    env = instantiate(node, name, Env)
    for i, around in enumerate(data.get("wrappers") or ()):
        env = instantiate(around, f"wrappers[{i}]", Env, inner=env)
    return env


def make_context(played: Env | Problem) -> dict[str, Any]:
    """Return the context fields of components: an environment and its spaces, or a problem."""
    if not isinstance(played, Env):
        return {"problem": played}
    return {"env": played, "observation_space": played.observation_space, "action_space": played.action_space}


def _get_field_context(field: dataclasses.Field[Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the context of the component in a field, which may have another environment or other spaces."""
    spaces = "observation_space", "action_space"
    if "spaces" in field.metadata and set(spaces) <= set(given):
        own = field.metadata["spaces"](*(given[name] for name in spaces))
        return given | dict(zip(spaces, own, strict=True))
    return make_context(field.metadata["env"](given["env"])) if "env" in field.metadata and "env" in given else given


def _require_signature(target: Any, parts: dict[str, Any], name: str) -> None:
    """Raise OptionError if the arguments do not match the signature of a target."""
    cls = getattr(target, "__name__", target)
    for field in get_fields(target) if isinstance(target, type) and dataclasses.is_dataclass(target) else []:
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name in CONTEXT_FIELDS and field.name not in parts:
            raise OptionError(f"{name}={cls}: {CONTEXT_FIELDS[field.name]}")
    try:
        signature = inspect.signature(target)
    except ValueError:  # it has no readable signature
        return
    try:
        signature.bind(**parts)
    except TypeError as error:
        raise OptionError(f"{name}={cls}: {error}") from error


def _find_target(node: dict[str, Any], name: str) -> Any:
    key = "path" if node["_target_"] == GET_CLASS else "_target_"
    expand_target(node["_target_"])  # raises an error that suggests a similar class
    target = require_target(node.get(key), f"{name}.{key}")
    if not callable(target):
        raise OptionError(f"{name}.{key}={node[key]}: is not callable")
    return target


def _is_assignable(target: Any, hint: Any) -> bool:
    """Return whether a target is a class of evorl that matches the type of a field."""
    is_class = isinstance(target, type) and dataclasses.is_dataclass(target)
    if not is_class or target.__module__.partition(".")[0] != "evorl":
        return False
    if hint is Any:
        return target is Fixed or issubclass(target, Schedule) or _has_protocol_members(target, Prior)
    if isinstance(hint, types.UnionType):
        return any(_is_assignable(target, one) for one in hint.__args__)
    if getattr(hint, "_is_protocol", False):
        return _has_protocol_members(target, hint)
    return isinstance(hint, type) and issubclass(target, hint)


def _is_single_agent(target: Any, hint: Any) -> bool:
    """Return whether a target is a single-agent class in a field for any agent; in games, a team of it is used."""
    if not getattr(hint, "_is_protocol", False) or not get_protocol_members(hint) >= get_protocol_members(Agent):
        return False
    return _is_assignable(target, Agent) and not _has_protocol_members(target, MultiAgentActor)


def _has_protocol_members(cls: type, protocol: type) -> bool:
    names = {field.name for field in get_fields(cls)}  # fields without a default are not class attributes
    return get_protocol_members(protocol) <= names | set(dir(cls))


def _describe_expected(hint: Any) -> str:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return f"must be {hint.__name__}"
    if isinstance(hint, type) and inspect.isabstract(hint):
        return f"must be a subclass of {hint.__module__.rpartition('.')[0]}.{hint.__name__}"
    return f"must be a component with a _target_, {'a prior' if hint is Any else getattr(hint, '__name__', hint)}"


def require_protocol(value: Any, protocol: type, name: str) -> Any:
    """Return the value; raise OptionError with the missing members if it does not implement the protocol."""
    if isinstance(value, protocol):
        return value
    if type(value).__module__ == "builtins":
        file = (
            f"; to choose a file by its name, use {name.rpartition('.')[2]}={value}" if isinstance(value, str) else ""
        )
        raise OptionError(f"{name}={value}: {_describe_expected(protocol)}{file}")
    lacking = sorted(one for one in get_protocol_members(protocol) if not hasattr(value, one))
    raise OptionError(f"{name}={type(value).__name__}: has no {', '.join(lacking)}, which {protocol.__name__} requires")


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Convert a value to the declared type of its field.

    Floats without a fraction are converted to int, and ints to float. Any other mismatch raises OptionError.
    """
    if value == "???":
        raise OptionError(f"{name}: must be given")
    wanted: Any = typing.get_origin(hint) or hint
    if wanted is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if wanted is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Prior) and hint not in (Any, object, Prior):
        raise OptionError(f"{name}={value}: a prior is allowed for hyperparameters only")
    if wanted in (types.UnionType, typing.Union):
        return _convert_union(value, typing.get_args(hint), name)
    if getattr(wanted, "_is_protocol", False):
        return require_protocol(value, wanted, name)
    if (dataclasses.is_dataclass(wanted) or inspect.isabstract(wanted)) and not isinstance(value, wanted):
        if type(value).__module__ == "builtins" and not dataclasses.is_dataclass(wanted):
            raise OptionError(f"{name}={value}: must be a component with a _target_, {wanted.__name__}")
        raise OptionError(f"{name}={type(value).__name__}: {_describe_expected(wanted)}")
    checked = wanted in (int, float, bool, str, tuple, Mapping, types.NoneType)
    if checked and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
        raise OptionError(f"{name}={value}: must be of type {_TYPE_NAMES.get(wanted, wanted.__name__)}")
    if wanted in (tuple, Sequence, Mapping) and (args := typing.get_args(hint)):
        return _convert_elements(value, wanted, args, name)
    return value


def _convert_elements(value: Any, wanted: Any, args: tuple[Any, ...], name: str) -> Any:
    """Convert the elements of a list or a mapping to the types in `args`, such as those of `tuple[int, ...]`."""
    if wanted is Mapping:
        return {key: _convert(x, args[1], f"{name}.{key}") for key, x in value.items()}
    require(isinstance(value, tuple), name, value, "must be of type list")
    each = args if wanted is tuple and args[-1] is not ... else args[:1] * len(value)
    require(len(each) == len(value), name, list(value), f"must be a list of {len(each)}")
    return tuple(_convert(x, kind, f"{name}[{i}]") for i, (x, kind) in enumerate(zip(value, each, strict=True)))


def _convert_union(value: Any, kinds: tuple[Any, ...], name: str) -> Any:
    """Convert a value to the first matching type of a union; raise the error of the first type if none matches."""
    problems = []
    for kind in kinds:
        try:
            return _convert(value, kind, name)
        except OptionError as problem:
            problems.append(problem)
    raise problems[0]
