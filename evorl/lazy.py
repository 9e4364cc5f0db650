"""Lazy imports: the public names of a package, listed in its stub, are imported when they are first used."""

import ast
import importlib
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
IMPORT_TIME = time.time()  # before any other module of evorl is imported


@cache
def read_public_names(package: str) -> dict[str, str]:
    """Return the module that defines each public name of a package of evorl, in the order of its stub.

    Args:
        package: Dotted name, "evorl" or a package within it.

    Returns:
        Dotted names of modules, by public name. A public subpackage maps to itself.
    """
    stub = ROOT.joinpath(*package.split(".")[1:], "__init__.pyi").read_text(encoding="utf-8")
    found = {}
    for line in ast.parse(stub).body:
        if isinstance(line, ast.ImportFrom) and line.module:
            of_package = line.module == package
            found |= {one.name: f"{package}.{one.name}" if of_package else line.module for one in line.names}
    return found


def list_packages() -> list[str]:
    """Return the sorted dotted names of the packages of evorl that have a stub."""
    folders = [path.parent.relative_to(ROOT).parts for path in ROOT.rglob("__init__.pyi")]
    return sorted(".".join(["evorl", *parts]) for parts in folders)


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for the `__init__` of a package that has a stub."""
    modules = read_public_names(package)

    def get_public_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        return module if modules[name] == f"{package}.{name}" else getattr(module, name)

    return get_public_name, lambda: sorted(modules), list(modules)
