"""Schedules: numbers that change with the env steps taken, which stand in the place of a number of a part."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from evorl.errors import require


@struct.dataclass
class Schedule:
    """The base of schedules, whose fields are numbers: floats or ints, priors or `Fixed` as configured, else arrays.

    A subclass is a flax.struct.dataclass with `value`; `ends` are those of its fields that must be in the range of the
    number that it stands for, the others count env steps.
    """

    ends: ClassVar[tuple[str, ...]] = ("start", "end")

    def __post_init__(self) -> None:
        for name, value in self.items():
            if name not in self.ends and isinstance(value, int | float):
                require(value > 0, name, value, "must be above 0, in env steps")

    def items(self) -> Iterator[tuple[str, Any]]:
        """Give the name and the value of each field."""
        yield from ((one.name, getattr(self, one.name)) for one in fields(self))

    def value(self, env_steps: Any) -> Array:
        """Return the number [] after so many env steps, []."""
        raise NotImplementedError(f"{type(self).__name__} has no value(env_steps)")

    def __jax_array__(self) -> Array:
        """Refuse to be a number, which it is after some env steps alone."""
        raise TypeError(
            f"{self} is a number by env steps: bind(part, resolve_numbers(part), env_steps) of evorl.parts gives the "
            "part with the number that it is then"
        )


@struct.dataclass
class Linear(Schedule):
    """From start to end over so many env steps, at the same rate; then it stays at end.

    Args:
        start: the number at first.
        end: the number at last.
        over: env steps; start holds all the time where it is infinite.
    """

    start: Any
    end: Any
    over: Any

    def value(self, env_steps: Any) -> Array:
        return self.start + (self.end - self.start) * jnp.minimum(env_steps / self.over, 1.0)


@struct.dataclass
class Cosine(Schedule):
    """From start to end over so many env steps, along half a cosine; then it stays at end.

    Args:
        start: the number at first.
        end: the number at last.
        over: env steps; start holds all the time where it is infinite.
    """

    start: Any
    end: Any
    over: Any

    def value(self, env_steps: Any) -> Array:
        turn = jnp.cos(jnp.pi * jnp.minimum(env_steps / self.over, 1.0))
        return self.end + (self.start - self.end) * (1 + turn) / 2
