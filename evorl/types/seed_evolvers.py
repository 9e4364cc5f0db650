"""What searches with members that are drawn where they play."""

from typing import Any

from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Params, State


@runtime_checkable
class SeedEvolver(Protocol):
    """An evolver whose genomes are seeds, by far smaller than members, which are drawn where they are to play.

    So no population is in memory, but those of it that play side by side. The state that ask gives does so as well.
    """

    def center_genome(self, state: State) -> Any:
        """The genome that stands for the solution."""
        ...

    def materialize(self, state: State, genomes: Any) -> Any:
        """What is held of members while they play, leaves [m, ...] as those of their genomes."""
        ...

    def to_params(self, state: State, genome: Any) -> Params:
        """The parameters of one member, at each call: of its genome, or of what is held of it."""
        ...
