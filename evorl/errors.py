"""Errors that a command reports without a traceback: user errors, and why a training cannot continue."""

import difflib
import sys
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, NoReturn

MIN_SIMILARITY = 0.6  # difflib ratio from which names count as similar
MAX_LISTED_NAMES = 10  # number of names that fit on a line
INT32_MAX = 2**31 - 1  # largest int32


class OptionError(ValueError):
    """Invalid option. The message, one line, says which option, the given value and what is allowed.

    Unprintable characters in the message are escaped, so that text from a file cannot move the cursor of a
    terminal.
    """

    def __init__(self, message: object) -> None:
        super().__init__(escape(str(message)))


class LockedError(OptionError):
    """Run directory to which another process is writing."""


class EnvError(ValueError):
    """Environment that does not satisfy the interface of evorl. The message has one line for each fault."""


class DivergedError(ArithmeticError):
    """Training that cannot continue because of NaN or infinite values. The message is one line."""


class HostError(RuntimeError):
    """Failure of an environment on the host, which ended a training. The message is one line."""


class WorkerError(RuntimeError):
    """Failure of worker processes that died repeatedly, or of a task in one. The message is one line."""


def escape(text: str) -> str:
    """Return a text with Python escapes in place of unprintable characters, such as those that move the cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def escape_cell(name: str) -> str:
    """Return a name for a table cell, escaped if a spreadsheet would take it for a formula."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@")) else name


def to_printable(value: object, most: int = 80) -> str:
    """Return an untrusted value as text for a message, escaped and cut to `most` characters."""
    text = escape(str(value)[: most + 1])
    return text if len(text) <= most else f"{text[: most - 3]}..."


def require(condition: bool, option: str, value: object, allowed: str) -> None:
    """Raise OptionError unless the condition holds."""
    if not condition:
        raise OptionError(f"{option}={value}: {allowed}")


def is_number(value: object) -> bool:
    """Return whether a value is a real number, neither NaN nor bool."""
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


def require_int(option: str, value: Any, least: int = 1, most: int = INT32_MAX) -> None:
    """Raise OptionError unless a value is an integer from `least` to `most`."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise OptionError(f"{option}={to_printable(value)}: must be a whole number, at least {least}")
    require(int(value) >= least, option, value, f"must be at least {least}" if least else "must not be negative")
    require(int(value) <= most, option, value, f"must be at most {most}")


def unknown_name_error(what: str, name: str, names: Iterable[str], everything: str = "") -> OptionError:
    """Return the error for an unknown name, with up to three similar names as suggestions.

    If there are more than MAX_LISTED_NAMES names and `everything`, a command that prints them all, is given,
    the message refers to that command. Otherwise, it lists all names if none is similar.
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
    """Return the similarity of two dotted names, from 0 to 1.

    The larger of two similarities counts: of their last parts, and of what follows their common first parts.
    It is at least MIN_SIMILARITY if the given name is one word of the last part of the known name.
    """
    a, b = given.split("."), known.split(".")
    shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    pairs = (a[-1], b[-1]), (".".join(a[shared:]), ".".join(b[shared:]))
    is_word = given in b[-1].split("_")
    return max(MIN_SIMILARITY * is_word, *(difflib.SequenceMatcher(None, y, x).ratio() for x, y in pairs))


def exit_with_error(error: OptionError) -> NoReturn:
    """Print a user error on stderr and exit with code 2."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
