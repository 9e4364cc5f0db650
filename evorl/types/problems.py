"""What a function to be searched is, and may be beside."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Key, Params

Bound: TypeAlias = float | Sequence[float]  # of all numbers of the parameters, or of each, in the order of their rows


@runtime_checkable
class Problem(Protocol):
    """A function of parameters, which is maximized."""

    @property
    def bounds(self) -> tuple[Bound, Bound]:
        """The least and the most of each number, infinite where there are none."""
        ...

    def init(self, key: Key) -> Params:
        """Parameters to begin with, drawn within the bounds."""
        ...

    def evaluate(self, key: Key, params: Params) -> Any:
        """Fitness, [] or [objectives], or a QDEvaluation that has it; without noise whatever the key."""
        ...


@runtime_checkable
class HasObjectiveNames(Protocol):
    """A problem, or an environment, of several objectives that have names."""

    @property
    def objective_names(self) -> tuple[str, ...]:
        """The name of each objective, as it is maximized: "-f1" of a function f1 that is minimized."""
        ...


@runtime_checkable
class BoundedOperator(Protocol):
    """A part of an evolver that can keep every number within bounds."""

    def with_limits(self, low: Bound, high: Bound) -> Any:
        """The same part, which keeps them."""
        ...
