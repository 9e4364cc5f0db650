"""Targets of a configuration: the objects that its nodes name by their dotted paths. It does not import JAX."""

import importlib
from functools import cache
from typing import Any

from evorl import lazy
from evorl.errors import OptionError, unknown_name_error


def expand_target(path: Any) -> Any:
    """Return the dotted path of a `_target_`; a public class of evorl may be given by its name alone.

    Raises:
        OptionError: There is no such class.
    """
    if not isinstance(path, str) or "." in path:
        return path
    known = list_public_classes()
    if path not in known:
        raise unknown_name_error("class", path, known)
    return known[path]


@cache
def list_public_classes() -> dict[str, str]:
    """Return the dotted paths, by name, of the public classes that a configuration may instantiate.

    Classes of evorl.distributed are excluded, since they start processes and write files.
    """
    packages = [name for name in lazy.list_packages() if name not in ("evorl.distributed", "evorl.spaces")]
    names = [one for package in packages for one in lazy.read_public_names(package).items()]
    return {name: f"{module}.{name}" for name, module in names if name[0].isupper()}


def import_target(path: str) -> Any:
    """Import the object with a dotted path, or the public class of evorl with a name.

    Raises:
        ImportError, AttributeError, ValueError: There is no such object.
    """
    module, _, name = expand_target(path).rpartition(".")
    if module.startswith("."):
        raise ImportError(f"{path} is relative")
    return getattr(importlib.import_module(module), name)


def require_target(path: Any, option: str) -> Any:
    """Return the object with a dotted path; raise OptionError with the reason if it cannot be imported.

    Args:
        path: Dotted path, or the name of a public class of evorl.
        option: Option that has the path, for the error message.
    """
    try:
        return import_target(path)
    except (ImportError, AttributeError, TypeError, ValueError, KeyError, SyntaxError) as error:
        top = str(path).partition(".")[0]
        advice = f"; start in the folder of {top}.py, or install its package"
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == top
        raise OptionError(f"{option}={path}: cannot be imported: {error}{advice * is_missing}") from error
