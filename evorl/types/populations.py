"""Protocols of workflows that hold a population."""

from typing import Any

from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Array, State
from evorl.types.workflows import CombinedStepWorkflow, Workflow


@runtime_checkable
class Population(Workflow, CombinedStepWorkflow, Protocol):
    """Protocol of a population of workflows.

    The leaves of its state have a leading axis of members, except for a replay buffer that the members share.
    """

    @property
    def inner(self) -> Any:
        """Return the workflow of one member."""
        ...

    @property
    def size(self) -> int:
        """Return the number of members, n."""
        ...

    def copy_members(self, state: State, source: Array) -> State:
        """Let members inherit from other members.

        Args:
            state: State of the population.
            source: Index of the parent of each member, shape [n]; its own index if it stays unchanged.

        Returns:
            The new state.
        """
        ...

    def has_no_nan(self, state: State) -> Array:
        """Return which members have a state without NaN, bool [n]. Replay buffers are not checked.

        Args:
            state: State of the population.
        """
        ...

    def get_member(self, state: State, i: int | Array) -> tuple[Workflow, State]:
        """Return the workflow and the state of one member.

        Args:
            state: State of the population.
            i: Index of the member.
        """
        ...


@runtime_checkable
class EvolvingWorkflow(Workflow, Protocol):
    """Protocol of a workflow whose state contains a population that persists over generations.

    The fittest member represents the population.
    """

    @property
    def population(self) -> Population:
        """Return the population."""
        ...

    def fittest_index(self, state: State) -> int | Array:
        """Return the index of the member that was the fittest in the last evaluation of the members.

        Args:
            state: State of the workflow.
        """
        ...

    def get_member(self, state: State, i: int | Array) -> tuple[Workflow, State]:
        """Return the workflow and the state of one member.

        Args:
            state: State of the workflow.
            i: Index of the member.
        """
        ...
