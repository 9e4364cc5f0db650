"""Dotted names and their abbreviations."""

from collections.abc import Iterable

from evorl.errors import OptionError


def find_by_ending(short: str, names: Iterable[str]) -> str | None:
    """Return the full name that a short name stands for.

    Args:
        short: Dotted ending of a name, such as learning_rate or evolver.std.
        names: All full names.

    Returns:
        The full name; None if no name ends in `short`.

    Raises:
        OptionError: If several names end in `short` and none equals it.
    """
    found = sorted(name for name in names if name == short or name.endswith(f".{short}"))
    if len(found) > 1 and short not in found:
        raise OptionError(f"{short}: is ambiguous, {' or '.join(found)}; give more of the name")
    return (short if short in found else found[0]) if found else None
