"""Docstrings of dataclasses: every field is described in `Args:`, hyperparameters by their `about`."""

import inspect
import re
import textwrap
from dataclasses import fields
from typing import Any, TypeVar

ENTRY = re.compile(r"    (\w+): ")
T = TypeVar("T")


def complete_docstring(cls: type[T]) -> type[T]:
    """Rewrite the docstring of a dataclass so that its `Args:` list every field that is described somewhere.

    A field is described in the docstring itself, by the `about` of a hyperparameter, or in the docstring of a base
    class, in this order: a class may declare a hyperparameter of its base again, with another range.
    """
    before, own, after = _split(cls.__doc__)
    inherited: dict[str, str] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited |= _split(base.__doc__)[1]
    described = []
    for field in fields(cls):  # pyright: ignore[reportArgumentType]
        text = own.get(field.name) or _describe_number(field.metadata) or inherited.get(field.name)
        if text and field.init:
            described.append(f"    {field.name}: {text}")
    if described:
        cls.__doc__ = "\n\n".join(filter(None, [before, "\n".join(["Args:", *described]), after]))
    return cls


def _describe_number(metadata: Any) -> str:
    """Return the `about` of a hyperparameter as a sentence, followed by its range; "" for other fields."""
    about = metadata.get("about", "")
    if not about:
        return ""
    text = f"{about[:1].upper()}{about[1:]}. Range [{metadata['low']:g}, {metadata['high']:g}]."
    return textwrap.fill(text, 100, subsequent_indent=" " * 8)


def _split(docstring: str | None) -> tuple[str, dict[str, str], str]:
    """Split a docstring into the text before `Args:`, its entries by name, and the text after them."""
    before, found, rest = inspect.cleandoc(docstring or "").partition("Args:\n")
    if not found:
        before, *source = re.split(r"\n\n(?=Sources?:)", before)
        return before, {}, "".join(source)
    section, _, after = rest.partition("\n\n")
    entries: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        begins = ENTRY.match(line)
        if begins:
            name = begins[1]
            entries[name] = line[begins.end() :]
        elif name:
            entries[name] += f"\n{line}"
    return before.rstrip(), entries, after
