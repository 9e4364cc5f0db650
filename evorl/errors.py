"""What a command says in one line: a user's mistake, or why a training cannot go on."""

import difflib
import sys
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, NoReturn

MIN_SIMILARITY = 0.6  # of difflib's ratio, from which names look alike
MAX_LISTED_NAMES = 10  # names that fit on a line
INT32_MAX = 2**31 - 1  # that an int32 holds


class OptionError(ValueError):
    """An option that cannot be used as given: its message names it, what was given and what is allowed, on one line.

    What the message shows of a file cannot move the cursor of a terminal: all that does not print is escaped.
    """

    def __init__(self, message: object) -> None:
        super().__init__(escape(str(message)))


class EnvError(ValueError):
    """An environment that is not as evorl needs it; its message has a line for each fault."""


class DivergedError(ArithmeticError):
    """A training whose numbers are lost; its message is one line."""


class HostError(RuntimeError):
    """An environment on the host that has failed, and ended a training; its message is one line."""


class WorkerError(RuntimeError):
    """Processes that have died again and again, or a task that has failed in one; its message is one line."""


def escape(text: str) -> str:
    """Return a text with Python's escapes for all that does not print, such as what moves the cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def to_printable(value: object, most: int = 80) -> str:
    """Return what a message shows of a value from elsewhere: not too much, and nothing that moves the cursor."""
    text = escape(str(value)[: most + 1])
    return text if len(text) <= most else f"{text[: most - 3]}..."


def require(condition: bool, option: str, value: object, allowed: str) -> None:
    """Raises OptionError unless condition."""
    if not condition:
        raise OptionError(f"{option}={value}: {allowed}")


def is_number(value: object) -> bool:
    """Whether a value is a real number, and neither NaN nor a truth value."""
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


def require_int(option: str, value: Any, least: int = 1, most: int = INT32_MAX) -> None:
    """Raises OptionError unless a value is a whole number from least to most."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise OptionError(f"{option}={to_printable(value)}: must be a whole number, at least {least}")
    require(int(value) >= least, option, value, f"must be at least {least}" if least else "must not be negative")
    require(int(value) <= most, option, value, f"must be at most {most}")


def unknown_name_error(what: str, name: str, names: Iterable[str], everything: str = "") -> OptionError:
    """The error for a name that is not among names: the nearest three, and the command that prints everything.

    Where none is near, all are told, unless they are many and there is such a command.
    """
    names = sorted(set(names))
    scores = {known: _similarity(name, known) for known in names}
    near = sorted((-scores[known], known.count("."), known) for known in names if scores[known] >= MIN_SIMILARITY)
    *others, last = [known for _, _, known in near[:3]] or [""]
    hints = [f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"] * bool(last)
    if len(names) > MAX_LISTED_NAMES and everything:
        hints.append(f"all {len(names)}: {everything}")
    elif not last:
        hints.append(f"allowed: {', '.join(names)}")
    return OptionError(f"unknown {what} {name or repr(name)}; {' '.join(hints)}")


def _similarity(given: str, known: str) -> float:
    """How alike two names are, from 0 to 1: their last parts, or all that comes after the parts that they share."""
    a, b = given.split("."), known.split(".")
    shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    pairs = (a[-1], b[-1]), (".".join(a[shared:]), ".".join(b[shared:]))
    is_word = given in b[-1].split("_")
    return max(MIN_SIMILARITY * is_word, *(difflib.SequenceMatcher(None, y, x).ratio() for x, y in pairs))


def exit_with_error(error: OptionError) -> NoReturn:
    """Ends a command for a user's mistake: its line on the terminal, exit code 2."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
