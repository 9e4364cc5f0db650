"""What the numbers of a part may do, and where they are searched."""

from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Array


@runtime_checkable
class Prior(Protocol):
    """A distribution over one number, as a monotonic map from the unit interval, in which search moves."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most that it gives."""
        ...

    @property
    def e_folds(self) -> float:
        """How wide it is where search moves by factors, so that f is a step of log(f) / e_folds; 0 where linear."""
        ...

    def decode(self, u: Array) -> Array:
        """The number at u in [0, 1]."""
        ...

    def encode(self, x: Array) -> Array:
        """Where in [0, 1] a number lies, clipped to its ends."""
        ...
