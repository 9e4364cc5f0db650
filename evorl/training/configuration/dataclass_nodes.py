"""Dataclasses as nodes of a configuration."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from evorl.parts import get_default
from evorl.training.configuration.parts import CONTEXT_FIELDS, get_fields


def make_default_node(cls: Any) -> dict[str, Any]:
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
        return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
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
