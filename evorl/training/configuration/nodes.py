"""Nodes: what a configuration holds of a dataclass, filled up with its defaults and its declared priors."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from evorl.errors import require, unknown_name_error
from evorl.parts import get_default
from evorl.training.configuration.parts import CONTEXT_FIELDS, get_fields, import_target


def fill_defaults(node: Any) -> Any:
    """A node in which every one with a _target_ has all defaults of the dataclass that this names."""
    if not isinstance(node, dict):
        return node
    node = {name: fill_defaults(value) for name, value in node.items()}
    target = import_target(node["_target_"]) if "_target_" in node else None
    return _make_default_node(target) | node if dataclasses.is_dataclass(target) else node


def _make_default_node(cls: Any) -> dict[str, Any]:
    """A dataclass as a node: its _target_ and every default; fields without one are left for the file to give."""
    node: dict[str, Any] = {"_target_": _name_target(cls)}
    for field in get_fields(cls):
        if field.name in CONTEXT_FIELDS:
            continue
        value = get_default(field)
        node[field.name] = "???" if value is dataclasses.MISSING else _make_value_node(value)
    return node


def _make_value_node(value: Any) -> Any:
    """A default as a node: of a part all that it was made with."""
    if not dataclasses.is_dataclass(value):
        return dict(value) if isinstance(value, Mapping) else value
    given = {field.name: getattr(value, field.name) for field in get_fields(value) if field.name not in CONTEXT_FIELDS}
    return {"_target_": _name_target(type(value)), **{name: _make_value_node(one) for name, one in given.items()}}


def _name_target(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def with_priors(node: dict[str, Any], space: Any, place: str) -> dict[str, Any]:
    """A node of hyperparameters with a space's priors in place of its defaults; place is that of the space."""
    defaults, merged = _make_default_node(import_target(node["_target_"])), dict(node)
    for name, prior in space.items():
        given = node.get(name)
        if name not in node:
            raise unknown_name_error(
                "hyperparameter", f"{place}.{name}", [f"{place}.{one}" for one in node if one != "_target_"]
            )
        if (
            isinstance(given, dict)
            and dataclasses.is_dataclass(import_target(given["_target_"]))
            and "_target_" not in prior
        ):
            merged[name] = with_priors(given, prior, f"{place}.{name}")
        elif not isinstance(given, dict):
            option = f"{place}.{name}".replace("space", "hyperparams", 1)
            require(given == defaults[name], option, given, f"is searched; fix it with {place}.{name}={given}")
            merged[name] = prior
    return merged


def collect_priors(node: Any) -> dict[str, Any]:
    """The declared priors of all numbers in a node of hyperparameters that are at their default, nested as it is."""
    target = import_target(node["_target_"]) if "_target_" in node else None
    known = {field.name: field for field in get_fields(target)} if dataclasses.is_dataclass(target) else {}
    found = {}
    for name, value in node.items():
        if isinstance(value, dict):
            found |= {name: inner} if (inner := collect_priors(value)) else {}
        elif name in known and value == known[name].default and (prior := known[name].metadata.get("prior")):
            found[name] = to_node(prior)
    return found


def to_node(part: Any) -> Any:
    """A part as the node that describes it."""
    if isinstance(part, tuple):
        return [to_node(value) for value in part]
    if not dataclasses.is_dataclass(part):
        return part
    values = {field.name: to_node(getattr(part, field.name)) for field in get_fields(part)}
    return {"_target_": _name_target(type(part)), **values}
