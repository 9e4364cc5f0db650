"""Nodes: dataclasses as data of a configuration, with their defaults."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evorl.parts import get_default
from evorl.training.configuration.parts import (
    CONTEXT_FIELDS,
    expand_target,
    get_fields,
    list_public_classes,
    require_target,
)

PRIORS_PREFIX, SCHEDULES_PREFIX = "evorl.priors.", "evorl.schedules."  # prefixes of class names
SCHEDULE_PATTERN = re.compile(r"\$\{(linear|cosine):([^${}]*)\}")
ALL_ENV_STEPS = "${or_inf:${env_steps}}"  # the whole training


def fill_defaults(node: Any) -> Any:
    """Return a node in which each _target_ is a full name and has all defaults of its dataclass.

    A schedule such as ${linear:1e-3,0} becomes a node, too, so that its numbers are options.
    """
    if isinstance(node, str):
        return _expand_schedule(node)
    if not isinstance(node, dict):
        return node
    node = {name: fill_defaults(value) for name, value in node.items()}
    if "_target_" not in node:
        return node
    node["_target_"] = expand_target(node["_target_"])
    target = require_target(node["_target_"], "_target_")
    return _make_default_node(target) | node if dataclasses.is_dataclass(target) else node


def _expand_schedule(value: str) -> Any:
    """Return the node of a string that is a schedule of numbers; any other string is unchanged."""
    found = SCHEDULE_PATTERN.fullmatch(value)
    try:
        numbers = [_parse_number(one) for one in found[2].split(",")] if found else []
    except ValueError:
        return value
    return make_schedule_node(found[1], numbers, ALL_ENV_STEPS) if found and len(numbers) in (2, 3) else value


def make_schedule_node(name: str, numbers: Sequence[Any], training: Any) -> dict[str, Any]:
    """Return the node of a schedule.

    Args:
        name: "linear" or "cosine".
        numbers: Start value, end value and, optionally, duration in env steps; by default the whole training.
        training: Env steps of the whole training.
    """
    start, end, over = (*numbers, training)[:3]
    return {"_target_": f"{SCHEDULES_PREFIX}{name.title()}", "start": start, "end": end, "over": over}


def _parse_number(text: str) -> float:
    return int(text) if text.strip().replace("_", "").isdecimal() else float(text)


def expand_targets(node: Any) -> Any:
    """Return a node in which each _target_ of evorl has its full name, as saved configurations need."""
    if isinstance(node, list):
        return [expand_targets(value) for value in node]
    if not isinstance(node, dict):
        return node
    known = list_public_classes()
    return {
        name: known.get(value, value) if name == "_target_" and isinstance(value, str) else expand_targets(value)
        for name, value in node.items()
    }


def _make_default_node(cls: Any) -> dict[str, Any]:
    """Return a dataclass as a node with its _target_ and all defaults; fields without a default are ???."""
    node: dict[str, Any] = {"_target_": _name_target(cls)}
    for field in get_fields(cls):
        if field.name in CONTEXT_FIELDS:
            continue
        value = get_default(field)
        node[field.name] = "???" if value is dataclasses.MISSING else _make_value_node(value)
    return node


def _make_value_node(value: Any) -> Any:
    """Return a default as a node; a component becomes a node with all its fields."""
    if not dataclasses.is_dataclass(value):
        return dict(value) if isinstance(value, Mapping) else value
    given = {field.name: getattr(value, field.name) for field in get_fields(value) if field.name not in CONTEXT_FIELDS}
    return {"_target_": _name_target(type(value)), **{name: _make_value_node(one) for name, one in given.items()}}


def _name_target(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def to_node(part: Any) -> Any:
    """Return the node that describes a component."""
    if isinstance(part, tuple):
        return [to_node(value) for value in part]
    if not dataclasses.is_dataclass(part):
        return part
    values = {field.name: to_node(getattr(part, field.name)) for field in get_fields(part)}
    return {"_target_": _name_target(type(part)), **values}
