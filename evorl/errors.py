"""What a command says in one line: a user's mistake, or why a training cannot go on."""

import difflib
import sys
from collections.abc import Iterable
from typing import NoReturn


class OptionError(ValueError):
    """An option that cannot be used as given: its message names it, what was given and what is allowed, on one line."""


class EnvError(ValueError):
    """An environment that is not as evorl needs it; its message has a line for each fault."""


class DivergedError(ArithmeticError):
    """A training whose numbers are lost; its message is one line."""


def require(condition: bool, option: str, value: object, allowed: str) -> None:
    """Raises OptionError unless condition."""
    if not condition:
        raise OptionError(f"{option}={value}: {allowed}")


def unknown(what: str, name: str, names: Iterable[str]) -> OptionError:
    """The error for a name that is not among names, with the nearest one, or all of them where none is near."""
    names = sorted(names)
    near = difflib.get_close_matches(name, names, 1)
    if not near:  # the last part of a dotted name may be right
        last = difflib.get_close_matches(name.rpartition(".")[2], {n.rpartition(".")[2] for n in names}, 1)
        near = [n for n in names if last and n.rpartition(".")[2] == last[0]]
    hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(names)}"
    return OptionError(f"unknown {what} {name}; {hint}")


def refuse(error: OptionError) -> NoReturn:
    """Ends a command for a user's mistake: its line on the terminal, exit code 2."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
