"""Defaults of the classes of evorl, saved in the user's cache folder, so that they are read without importing JAX."""

import dataclasses
import hashlib
import json
from functools import cache
from typing import Any

from evorl import lazy
from evorl.training.configuration.targets import require_target
from evorl.training.records.json_cache import JsonCache

DEFAULTS_FILE = "defaults.json"  # nodes by target, each with a fingerprint of the source files that it was made from


def read_default_node(target: Any) -> dict[str, Any]:
    """Return the defaults of a target as a node; empty if it is not a dataclass.

    Args:
        target: Dotted path.

    Raises:
        OptionError: The target cannot be imported.
    """
    if not str(target).startswith("evorl."):
        return _import_default_node(target)
    saved = JsonCache(DEFAULTS_FILE)
    fingerprint, newest = _fingerprint_sources()
    match saved.get(target):
        case {"sources": sources, "node": dict(node)} if sources == fingerprint:
            return node
    node = _import_default_node(target)
    is_current = newest < lazy.IMPORT_TIME  # otherwise, a class may be from a file that has changed since
    if is_current and _is_json(node):
        saved.put(target, {"sources": fingerprint, "node": node})
    return node


def _import_default_node(target: Any) -> dict[str, Any]:
    cls = require_target(target, "_target_")
    if not dataclasses.is_dataclass(cls):
        return {}
    from evorl.training.configuration.dataclass_nodes import make_default_node

    return make_default_node(cls)


def _is_json(node: dict[str, Any]) -> bool:
    """Return whether JSON represents a node exactly."""
    try:
        return json.loads(json.dumps(node)) == node
    except (TypeError, ValueError):
        return False


@cache
def _fingerprint_sources() -> tuple[str, float]:
    """Return a hash of the names, times and sizes of the source files of evorl, and the time of the newest."""
    found = [(str(path), path.stat()) for path in sorted(lazy.ROOT.rglob("*.py"))]
    text = json.dumps([(path, one.st_mtime_ns, one.st_size) for path, one in found])
    return hashlib.sha256(text.encode()).hexdigest(), max(one.st_mtime for _, one in found)
