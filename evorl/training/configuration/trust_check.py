"""Security check of configurations from elsewhere.

They may only refer to components of evorl, algorithms of evosax, and packages that the user trusts.
"""

import re
from collections.abc import Iterator, Sequence, Set
from functools import cache
from typing import Any, NamedTuple

from evorl.errors import OptionError, to_printable
from evorl.training.configuration.parts import GET_CLASS
from evorl.training.configuration.targets import list_public_classes

BUILTIN_PACKAGES = frozenset({"evorl", "evosax"})  # their names are checked against a list, so no trust is needed
EVOSAX_PREFIX = "evosax.algorithms."
MISSING = "???"
INTEGER_LIMIT = 2**63  # integers must be smaller in absolute value
WORD_PATTERN = re.compile(r"[\w+\- ][\w.+\- ]{0,99}|", re.ASCII)
ID_PATTERN = re.compile(r"([\w+\-][\w.+\-]{0,99}/){0,4}[\w+\-][\w.+\-]{0,99}", re.ASCII)  # id in a registry
LIBRARY_BY_CLASS = {  # classes whose library opens a file if an option is a path
    "HostEnv": "gymnasium",
    "MuJoCo": "gymnasium",
    "MJX": "gymnasium",
    "EnvPool": "envpool",
    "HostGame": "pettingzoo",
    "Playground": "mujoco_playground",
    "JaxMARL": "jaxmarl",
    "Brax": "brax",
}


class UnknownValue(NamedTuple):
    """A value that is not known to be safe: its description, and the package that would have to be trusted, or ""."""

    description: str
    package: str


@cache
def _list_evosax_algorithms() -> frozenset[str]:
    from evosax import algorithms

    return frozenset(f"{EVOSAX_PREFIX}{name}" for name, value in vars(algorithms).items() if isinstance(value, type))


def require_known(node: Any, trust: Sequence[str], problem: str) -> None:
    """Require that data from elsewhere contain only values that are known to be safe.

    Words and ids are safe, but paths and `module:name` are not. In options of a trusted package, every word
    is allowed.

    Args:
        node: Mappings, lists, numbers and words.
        trust: Packages that the user trusts, whose classes the data may name.
        problem: Beginning of the error message.

    Raises:
        OptionError: A value is not known to be safe. The message names the package to trust, if that would
            help.
    """
    faults = list(_find_unknown_values(node, "", "", frozenset(trust) - BUILTIN_PACKAGES))
    for fault in faults:
        if not fault.package:
            raise OptionError(f"{problem} {fault.description}")
    if faults:
        packages = sorted({fault.package for fault in faults})
        it = "it" if len(packages) == 1 else "them"
        raise OptionError(f"{problem} {faults[0].description}; use trust=[{', '.join(packages)}] if you trust {it}")


def find_trust_packages(node: Any) -> list[str]:
    """Return the packages, besides evorl, that a user has to trust to build the described objects."""
    return sorted({fault.package for fault in _find_unknown_values(node, "", "", frozenset()) if fault.package})


def _find_unknown_values(node: Any, place: str, library: str, trust: Set[str]) -> Iterator[UnknownValue]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield from _check_target(node, trust)
            package, _, name = str(node["_target_"]).rpartition(".")
            if package.partition(".")[0] in trust:
                library = package.partition(".")[0]
            library = LIBRARY_BY_CLASS.get(name, library)
        for name, value in node.items():
            if not isinstance(name, str) or not WORD_PATTERN.fullmatch(name):
                yield UnknownValue(f"has the name {to_printable(name)}, which is not a plain word", "")
            is_target = name == "_target_" or (name == "path" and node.get("_target_") == GET_CLASS)
            if not is_target:
                yield from _find_unknown_values(value, f"{place}.{name}".lstrip("."), library, trust)
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _find_unknown_values(value, f"{place}[{i}]", library, trust)
    elif isinstance(node, str) and node != MISSING and library not in trust:
        yield from _check_word(node, place, library, trust)
    elif node is not None and not isinstance(node, (str, int, float)):
        yield UnknownValue(f"has {place}={to_printable(node)}: must be a number, a word, a list or a mapping", "")
    elif isinstance(node, int) and abs(node) >= INTEGER_LIMIT:
        yield UnknownValue(f"has {place}: must be between -2^63 and 2^63", "")


def _check_target(node: dict[str, Any], trust: Set[str]) -> Iterator[UnknownValue]:
    target = node.get("path") if node["_target_"] == GET_CLASS else node["_target_"]
    known = _list_evosax_algorithms() if node["_target_"] == GET_CLASS else list_public_classes().values()
    package = str(target).partition(".")[0]
    if not isinstance(target, str) or (target not in known and package not in trust):
        yield UnknownValue(f"names {to_printable(target)}, which is not part of evorl", _get_external_package(package))


def _check_word(word: str, place: str, library: str, trust: Set[str]) -> Iterator[UnknownValue]:
    module, colon, name = word.rpartition(":")
    is_id = place.rpartition(".")[2] == "name" and ID_PATTERN.fullmatch(name)
    if colon and module.partition(".")[0] in trust and is_id:
        return
    if not colon and (WORD_PATTERN.fullmatch(word) or is_id):
        return
    package = module.partition(".")[0] if colon else library
    yield UnknownValue(
        f"has {to_printable(place)}={to_printable(word)}, which is not a plain word", _get_external_package(package)
    )


def _get_external_package(package: str) -> str:
    return package if package not in BUILTIN_PACKAGES and package.isidentifier() and package.isascii() else ""
