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
        own = type(self).value is not Schedule.value
        require(own, "schedule", type(self).__name__, "must be a subclass that has a value(env_steps), such as Linear")
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
class Ramp(Schedule):
    """The base of schedules from start to end, where they stay.

    Args:
        start: the number at first.
        end: the number at last.
        over: env steps from one to the other; start holds all the time where it is infinite.
    """

    start: Any  # a number, a prior or an array, as all numbers of a part
    end: Any  # likewise
    over: Any  # likewise

    def progress(self, env_steps: Any) -> Array:
        """Return how much of the way is done, [] from 0 to 1."""
        return jnp.minimum(env_steps / self.over, 1.0)


@struct.dataclass
class Linear(Ramp):
    """From start to end over so many env steps, at the same rate."""

    def value(self, env_steps: Any) -> Array:
        return self.start + (self.end - self.start) * self.progress(env_steps)


@struct.dataclass
class Cosine(Ramp):
    """From start to end over so many env steps, along half a cosine."""

    def value(self, env_steps: Any) -> Array:
        return self.end + (self.start - self.end) * (1 + jnp.cos(jnp.pi * self.progress(env_steps))) / 2
