"""Schedules, which change a hyperparameter with the number of env steps."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from evorl.errors import require


@struct.dataclass
class Schedule:
    """Base class of schedules, which change a hyperparameter with the number of env steps.

    A subclass is a flax.struct.dataclass that implements `value`. Its fields are numbers: in a configuration,
    floats, ints, priors or `Fixed`; in a state, arrays.

    Attributes:
        ends: Names of the fields that are values of the hyperparameter and must be in its range. The other
            fields count env steps.
    """

    ends: ClassVar[tuple[str, ...]] = ("start", "end")

    def __post_init__(self) -> None:
        own = type(self).value is not Schedule.value
        require(
            own, "schedule", type(self).__name__, "must be a subclass that implements value(env_steps), such as Linear"
        )
        for name, value in self.items():
            if name not in self.ends and isinstance(value, int | float):
                require(value > 0, name, value, "must be above 0, in env steps")

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the value of each field."""
        yield from ((one.name, getattr(self, one.name)) for one in fields(self))

    def value(self, env_steps: Any) -> Array:
        """Return the value of the hyperparameter after a number of env steps.

        Args:
            env_steps: Number of env steps, [].

        Returns:
            The value, [].
        """
        raise NotImplementedError(f"{type(self).__name__} has no value(env_steps)")

    def __jax_array__(self) -> Array:
        """Raise TypeError, since a schedule has a value only at a number of env steps."""
        raise TypeError(
            f"{self} has a value only at a number of env steps; use evorl.parts.bind(part, resolve_numbers(part), "
            "env_steps)"
        )


@struct.dataclass
class Ramp(Schedule):
    """Base class of schedules that go from a start to an end and stay there.

    Args:
        start: Value at the start.
        end: Value at the end.
        over: Number of env steps from start to end; infinite to stay at start.
    """

    start: Any  # a number, a prior or an array, like all hyperparameters
    end: Any  # likewise
    over: Any  # likewise

    def progress(self, env_steps: Any) -> Array:
        """Return the completed fraction of the ramp, [], from 0 to 1."""
        return jnp.minimum(env_steps / self.over, 1.0)


@struct.dataclass
class Linear(Ramp):
    """Linear schedule from start to end.

    Args:
        start: Value at the start.
        end: Value after `over` env steps and later.
        over: Number of env steps from start to end; infinite to stay at start.
    """

    def value(self, env_steps: Any) -> Array:
        """Return the linearly interpolated value."""
        return self.start + (self.end - self.start) * self.progress(env_steps)


@struct.dataclass
class Cosine(Ramp):
    """Schedule from start to end along half a period of a cosine.

    Args:
        start: Value at the start.
        end: Value after `over` env steps and later.
        over: Number of env steps from start to end; infinite to stay at start.
    """

    def value(self, env_steps: Any) -> Array:
        """Return the value interpolated along half a period of a cosine."""
        return self.end + (self.start - self.end) * (1 + jnp.cos(jnp.pi * self.progress(env_steps))) / 2
