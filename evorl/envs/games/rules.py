"""The rules of a finite game, in plain Python."""

from collections.abc import Hashable, Sequence
from typing import Any

from typing_extensions import Protocol, runtime_checkable

CHANCE, TERMINAL = -1, -2  # who moves where no player does


@runtime_checkable
class Rules(Protocol):
    """A finite game of turns; a state is any value, which nothing changes in place.

    Players who move at once move one after another, the later ones without knowing how the earlier ones did.
    """

    @property
    def players(self) -> int:
        """How many there are."""
        ...

    @property
    def num_actions(self) -> int:
        """Actions are numbers below it."""
        ...

    def init_state(self) -> Any:
        """The state in which a game begins."""
        ...

    def current_player(self, state: Any) -> int:
        """The player whose turn it is, CHANCE or TERMINAL."""
        ...

    def legal_actions(self, state: Any) -> Sequence[int]:
        """The legal actions of a player whose turn it is."""
        ...

    def chance_outcomes(self, state: Any) -> Sequence[tuple[int, float]]:
        """The outcomes of CHANCE, each with its probability."""
        ...

    def apply_action(self, state: Any, action: int) -> Any:
        """The state after an action, or an outcome of chance."""
        ...

    def payoffs(self, state: Any) -> Sequence[float]:
        """What each player gets where the game is over, TERMINAL."""
        ...

    def information_state(self, state: Any, player: int) -> Hashable:
        """What a player knows: where that is the same for the mover, it decides the same."""
        ...

    def features(self, state: Any, player: int) -> Sequence[float]:
        """The same as numbers, of one length, for networks."""
        ...

    def format_state(self, state: Any) -> str:
        """A state in a few lines, as one sees it who sees all."""
        ...
