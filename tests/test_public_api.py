"""The public API: every public name with its signature, as docs/reference/public_api.md promises it."""

import importlib
import inspect
import os
from pathlib import Path
from typing import get_origin

from evorl import lazy

RECORDED = Path(__file__).parent / "public_api.txt"
SHOWN = (type(None), bool, int, float, str)


def test_no_public_name_or_signature_changed():
    """Record anew with EVORL_RECORD=1, after the change stands in CHANGELOG.md."""
    found = "\n".join(describe_packages()) + "\n"
    if os.environ.get("EVORL_RECORD"):
        RECORDED.write_text(found, encoding="utf-8")
    assert found.splitlines() == RECORDED.read_text(encoding="utf-8").splitlines()


def test_the_names_most_programs_use_are_few():
    names = list(lazy.read_public_names("evorl"))
    assert len(names) <= 111


def describe_packages():
    for package in lazy.list_packages():
        module = importlib.import_module(package)
        yield f"{package}: {', '.join(sorted(module.__all__))}"
        yield from (line for name in sorted(module.__all__) for line in describe(getattr(module, name), name, package))


def describe(value, name, package):
    """Return the signature of a function or class, and those of its public methods; none of what evorl gives again."""
    if package == "evorl" and not inspect.isfunction(value):
        return
    if inspect.isclass(value):
        yield f"  {name}{signature(value)}"
        for method, found in sorted(inspect.getmembers(value)):
            if method.startswith("_") or not (inspect.isfunction(found) or isinstance(found, property)):
                continue
            yield f"    .{method}" + ("" if isinstance(found, property) else signature(found))
    elif callable(value) and get_origin(value) is None:
        yield f"  {name}{signature(value)}"


def signature(function):
    """Return the names of parameters and their defaults, where those are numbers or words."""
    parameters = inspect.signature(function).parameters.values()
    return f"({', '.join(describe_parameter(one) for one in parameters if one.name != 'self')})"


def describe_parameter(one):
    name = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "") + one.name
    if one.default is one.empty:
        return name
    return f"{name}={one.default!r}" if isinstance(one.default, SHOWN) else f"{name}=..."
