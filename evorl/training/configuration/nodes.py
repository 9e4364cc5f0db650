"""Nodes: what a configuration holds of a dataclass, filled up with its defaults."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evorl.parts import get_default
from evorl.training.configuration.parts import (
    CONTEXT_FIELDS,
    expand_target,
    get_fields,
    import_target,
    list_public_classes,
)

PRIORS_PREFIX, SCHEDULES_PREFIX = "evorl.priors.", "evorl.schedules."  # which begin the names of their classes
SCHEDULE_PATTERN = re.compile(r"\$\{(linear|cosine):([^${}]*)\}")
ALL_ENV_STEPS = "${or_inf:${env_steps}}"  # over all of a training


def fill_defaults(node: Any) -> Any:
    """A node in which every _target_ is a full name, and has all defaults of the dataclass that this names.

    A schedule as ${linear:1e-3,0} is a node too, so that its numbers are options.
    """
    if isinstance(node, str):
        return _expand_schedule(node)
    if not isinstance(node, dict):
        return node
    node = {name: fill_defaults(value) for name, value in node.items()}
    if "_target_" not in node:
        return node
    node["_target_"] = expand_target(node["_target_"])
    target = import_target(node["_target_"])
    return _make_default_node(target) | node if dataclasses.is_dataclass(target) else node


def _expand_schedule(value: str) -> Any:
    """Return the node that a word stands for if it is a schedule of numbers, else the word."""
    found = SCHEDULE_PATTERN.fullmatch(value)
    try:
        numbers = [_parse_number(one) for one in found[2].split(",")] if found else []
    except ValueError:
        return value
    return make_schedule_node(found[1], numbers, ALL_ENV_STEPS) if found and len(numbers) in (2, 3) else value


def make_schedule_node(name: str, numbers: Sequence[Any], training: Any) -> dict[str, Any]:
    """Return the node of a schedule.

    Args:
        name: linear or cosine.
        numbers: where it begins, where it ends, and over how many env steps, or without these over the training.
        training: the env steps of a training.
    """
    start, end, over = (*numbers, training)[:3]
    return {"_target_": f"{SCHEDULES_PREFIX}{name.title()}", "start": start, "end": end, "over": over}


def _parse_number(text: str) -> float:
    return int(text) if text.strip().replace("_", "").isdecimal() else float(text)


def expand_targets(node: Any) -> Any:
    """Return a node in which every _target_ that names a class of evorl has its full name, as a saved one must."""
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


def to_node(part: Any) -> Any:
    """A part as the node that describes it."""
    if isinstance(part, tuple):
        return [to_node(value) for value in part]
    if not dataclasses.is_dataclass(part):
        return part
    values = {field.name: to_node(getattr(part, field.name)) for field in get_fields(part)}
    return {"_target_": _name_target(type(part)), **values}
