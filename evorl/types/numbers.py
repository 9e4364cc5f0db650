"""Protocol of the priors of hyperparameters."""

from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Array


@runtime_checkable
class Prior(Protocol):
    """Protocol of a prior, the distribution of a hyperparameter in a search.

    A prior is a monotonic map from the unit interval, in which the search takes place, to the values of the
    hyperparameter.
    """

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the lowest and the highest value."""
        ...

    @property
    def e_folds(self) -> float:
        """Return the width of the prior in natural-log units; 0 if it is linear.

        With a logarithmic prior, to multiply a value by f is a step of log(f) / e_folds in the unit interval.
        """
        ...

    def decode(self, u: Array) -> Array:
        """Return the value at a point of the unit interval.

        Args:
            u: Point in [0, 1], of any shape.
        """
        ...

    def encode(self, x: Array) -> Array:
        """Return the point of the unit interval at which a value lies, clipped to [0, 1].

        Args:
            x: Value, of any shape.
        """
        ...
