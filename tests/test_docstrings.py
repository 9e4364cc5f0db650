"""Docstrings of the public API: every field and every parameter is described, hyperparameters by their `about`."""

import dataclasses
import importlib
import inspect
import re

import flax.linen as nn
import pytest

from evorl import lazy
from evorl.parts import number, part

PUBLIC = sorted({(module, name) for of in lazy.list_packages() for name, module in lazy.read_public_names(of).items()})


def described(value) -> set[str]:
    """Return the names that a docstring describes."""
    return set(re.findall(r"^\s+\*{0,2}(\w+)(?: \([^)]*\))?: ", inspect.getdoc(value) or "", re.MULTILINE))


def parameters(value) -> list[str]:
    """Return the parameters of a function, or the fields of a dataclass that may be given."""
    if dataclasses.is_dataclass(value):
        of_flax = {"parent", "name"} if issubclass(value, nn.Module) else set()
        return [field.name for field in dataclasses.fields(value) if field.init and field.name not in of_flax]
    return [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]


def test_every_parameter_of_a_public_function_and_field_of_a_public_class_is_described():
    missing = {}
    for module, name in PUBLIC:
        value = getattr(importlib.import_module(module), name, None)
        if not (inspect.isfunction(value) or (inspect.isclass(value) and dataclasses.is_dataclass(value))):
            continue
        lacking = [one for one in parameters(value) if one not in described(value)]
        if lacking:
            missing[f"{module}.{name}"] = lacking
    assert missing == {}


def test_a_part_describes_fields_of_its_bases_and_hyperparameters():
    @part
    class Base:
        """A base.

        Source: a paper.

        Args:
            size: Number of things,
                in units.
        """

        size: int = 1
        rate: float = number(0.1, 0, 1, about="learning rate")

    @part
    class Derived(Base):
        """A derived class.

        Source: another paper.
        """

        rate: float = number(0.5, 0, 2, about="step size")
        std: float = number(0.2, 0, about="standard deviation")

    assert inspect.getdoc(Base) == (
        "A base.\n\nSource: a paper.\n\nArgs:\n    size: Number of things,\n        in units.\n"
        "    rate: Learning rate. Range [0, 1]."
    )
    assert inspect.getdoc(Derived) == (
        "A derived class.\n\nArgs:\n    size: Number of things,\n        in units.\n"
        "    rate: Step size. Range [0, 2].\n    std: Standard deviation. Range [0, inf].\n\nSource: another paper."
    )


@pytest.mark.parametrize("text", [None, "A part."])
def test_a_part_without_described_fields_keeps_its_docstring(text):
    class Plain:
        size: int = 1

    Plain.__doc__ = text
    assert part(Plain).__doc__ == (text or "Plain(size: int = 1)")
