"""Workflows of members."""

from typing import Any

from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Array, State
from evorl.types.workflows import CombinedStepWorkflow, Workflow


@runtime_checkable
class Population(Workflow, CombinedStepWorkflow, Protocol):
    """A workflow of members, with which the leaves of its state lead, but for a replay that they share."""

    @property
    def inner(self) -> Any:
        """The workflow of one member."""
        ...

    @property
    def size(self) -> int:
        """How many members, n."""
        ...

    def copy_members(self, state: State, source: Array) -> State:
        """The state in which each member inherits from member source[i], itself where it lives on."""
        ...

    def has_no_nan(self, state: State) -> Array:
        """[n] bool, of whose state no number is NaN, replays left out."""
        ...

    def get_member(self, state: State, i: int | Array) -> tuple[Workflow, State]:
        """The workflow and the state of one member."""
        ...


@runtime_checkable
class EvolvingWorkflow(Workflow, Protocol):
    """A workflow around a population that lives on in the members of its state, of whom the fittest stands for all."""

    @property
    def population(self) -> Population:
        """The population."""
        ...

    def fittest_index(self, state: State) -> int | Array:
        """Which member was the fittest when they were last evaluated."""
        ...

    def get_member(self, state: State, i: int | Array) -> tuple[Workflow, State]:
        """The workflow and the state of one member."""
        ...
