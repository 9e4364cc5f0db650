"""Protocols of optimization problems, which are functions of parameters without an environment."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Key, Params

Bound: TypeAlias = (
    float | Sequence[float]
)  # for all parameters, or one for each, in the order of the flattened parameters


@runtime_checkable
class Problem(Protocol):
    """Protocol of an optimization problem: a function of parameters that is maximized."""

    @property
    def bounds(self) -> tuple[Bound, Bound]:
        """Return the lower and the upper bounds of the parameters; they are infinite if there are none."""
        ...

    def init(self, key: Key) -> Params:
        """Sample initial parameters within the bounds.

        Args:
            key: Random key.

        Returns:
            The parameters.
        """
        ...

    def evaluate(self, key: Key, params: Params) -> Any:
        """Return the fitness of parameters.

        Args:
            key: Random key of the noise; a deterministic problem ignores it.
            params: Parameters to evaluate.

        Returns:
            The fitness, [] or [objectives], or a QDEvaluation that contains it.
        """
        ...


@runtime_checkable
class HasObjectiveNames(Protocol):
    """Protocol of a problem or an environment with several objectives that have names."""

    @property
    def objective_names(self) -> tuple[str, ...]:
        """Return the name of each objective as it is maximized, such as "-f1" for a function f1 that is minimized."""
        ...


@runtime_checkable
class BoundedOperator(Protocol):
    """Protocol of a component of an evolver that can keep all parameters within bounds."""

    def with_limits(self, low: Bound, high: Bound) -> Any:
        """Return a copy of the component that keeps the bounds.

        Args:
            low: Lower bounds of the parameters.
            high: Upper bounds of the parameters.
        """
        ...
