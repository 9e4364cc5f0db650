"""Dotted names, and those that are short for one."""

from collections.abc import Iterable

from evorl.errors import OptionError


def find_by_ending(short: str, names: Iterable[str]) -> str | None:
    """Return the name that a short one stands for.

    Args:
        short: dotted, such as learning_rate or evolver.std.
        names: all there are.

    Returns:
        The name in full; None where none ends so.

    Raises:
        OptionError: where several do.
    """
    found = sorted(name for name in names if name == short or name.endswith(f".{short}"))
    if len(found) > 1 and short not in found:
        raise OptionError(f"{short}: may be {' or '.join(found)}; give more of its name")
    return (short if short in found else found[0]) if found else None
