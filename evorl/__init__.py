"""Evolutionary reinforcement learning on JAX: the names that a notebook uses, imported when first asked for."""

import ast
import importlib
from pathlib import Path
from typing import Any


def _parse_stub(stub: str) -> dict[str, str]:
    """The module of every name that a stub imports."""
    imports = [line for line in ast.parse(stub).body if isinstance(line, ast.ImportFrom) and line.module]
    return {alias.name: str(line.module) for line in imports for alias in line.names}


_MODULES = _parse_stub(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("evorl.package").version()
    if name not in _MODULES:
        raise AttributeError(f"module 'evorl' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
