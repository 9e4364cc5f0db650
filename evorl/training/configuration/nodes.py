"""Nodes of a configuration with the defaults of their dataclasses. The module does not import JAX."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from evorl.training.configuration.saved_defaults import read_default_node
from evorl.training.configuration.targets import expand_target, list_public_classes

BUILD_SECTIONS = ("env", "eval_env", "wrappers", "problem", "agent.workflow")
PRIORS_PREFIX, SCHEDULES_PREFIX = "evorl.priors.", "evorl.schedules."  # prefixes of class names
SCHEDULE_PATTERN = re.compile(r"\$\{(linear|cosine):([^${}]*)\}")
LEARNER_STEPS = "${learner_steps:}"  # the env steps of one learner in the whole training


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
    return read_default_node(node["_target_"]) | node


def _expand_schedule(value: str) -> Any:
    """Return the node of a string that is a schedule of numbers; any other string is unchanged."""
    found = SCHEDULE_PATTERN.fullmatch(value)
    try:
        numbers = [_parse_number(one) for one in found[2].split(",")] if found else []
    except ValueError:
        return value
    return make_schedule_node(found[1], numbers, LEARNER_STEPS) if found and len(numbers) in (2, 3) else value


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


def iterate_leaves(node: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield every value that is not a mapping or a list, with its dotted name."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from iterate_leaves(value, f"{place}.{name}".lstrip("."))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from iterate_leaves(value, f"{place}[{i}]")
    else:
        yield place, node
