"""The one error for a user's mistake: it names the option, what was given and what is allowed."""

import difflib
from collections.abc import Iterable


class OptionError(ValueError):
    """An option that cannot be used as given; its message is one line."""


def require(condition: bool, option: str, value: object, allowed: str) -> None:
    """Raises OptionError unless condition."""
    if not condition:
        raise OptionError(f"{option}={value}: {allowed}")


def unknown(what: str, name: str, names: Iterable[str]) -> OptionError:
    """The error for a name that is not among names, with the nearest one, or all of them where none is near."""
    names = sorted(names)
    near = difflib.get_close_matches(name, names, 1) or difflib.get_close_matches(name.split(".")[-1], names, 1)
    return OptionError(
        f"unknown {what} {name}; " + (f"did you mean {near[0]}?" if near else f"allowed: {', '.join(names)}")
    )
