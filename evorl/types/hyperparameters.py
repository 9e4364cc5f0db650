"""Who has hyperparameters, what these may do, and where they are searched."""

from typing import Any, Protocol, runtime_checkable

from evorl.types.data import Array, Hyperparams


@runtime_checkable
class HasHyperparams(Protocol):
    """A part with hyperparameters, or of parts that have them."""

    def hyperparams(self) -> Hyperparams:
        """Those of its parts at their defaults."""
        ...


@runtime_checkable
class Scheduled(Protocol):
    """A part whose numbers change with the env steps taken."""

    def apply_schedule(self, env_steps: Array) -> "Scheduled":
        """Return the part with its numbers after so many env steps, []."""
        ...


@runtime_checkable
class HasDiscount(Protocol):
    """Hyperparameters by which later rewards count less."""

    discount: Any


@runtime_checkable
class HasPriorityExponents(Protocol):
    """Hyperparameters by which some of what was collected is learned from more often."""

    priority_alpha: Any  # exponent of priorities; 0 where all are alike
    priority_beta: Any  # how far weights correct for that; 1 wholly


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
