"""Protocol of the rules of a finite game, in plain Python."""

from collections.abc import Hashable, Sequence
from typing import Any

from typing_extensions import Protocol, runtime_checkable

CHANCE, TERMINAL = -1, -2  # values of current_player if no player moves


@runtime_checkable
class Rules(Protocol):
    """Protocol of the rules of a finite game in which players move in turn.

    A state is any value, and is never changed in place. Simultaneous moves are made one after another, and a
    player does not learn the simultaneous moves made before its own.
    """

    @property
    def players(self) -> int:
        """Return the number of players."""
        ...

    @property
    def num_actions(self) -> int:
        """Return the number of actions; an action is an integer from 0 to num_actions - 1."""
        ...

    def init_state(self) -> Any:
        """Return the initial state of a game."""
        ...

    def current_player(self, state: Any) -> int:
        """Return the player that moves in a state, or CHANCE or TERMINAL.

        Args:
            state: State of the game.
        """
        ...

    def legal_actions(self, state: Any) -> Sequence[int]:
        """Return the legal actions of the player that moves in a state.

        Args:
            state: State in which a player moves.
        """
        ...

    def chance_outcomes(self, state: Any) -> Sequence[tuple[int, float]]:
        """Return the outcomes of a chance event, each with its probability.

        Args:
            state: State in which CHANCE moves.
        """
        ...

    def apply_action(self, state: Any, action: int) -> Any:
        """Return the state after an action of a player, or after an outcome of chance.

        Args:
            state: State of the game.
            action: Action or outcome.
        """
        ...

    def payoffs(self, state: Any) -> Sequence[float]:
        """Return the payoff of each player at the end of a game.

        Args:
            state: Final state, in which current_player is TERMINAL.
        """
        ...

    def information_state(self, state: Any, player: int) -> Hashable:
        """Return the information that a player has in a state.

        States with the same information of the player that moves form an information set, in which it acts
        alike.

        Args:
            state: State of the game.
            player: Index of the player.
        """
        ...

    def features(self, state: Any, player: int) -> Sequence[float]:
        """Return the information state of a player as numbers for a network, always of the same length.

        They must differ between information sets, because players find their information set by them.

        Args:
            state: State of the game.
            player: Index of the player.
        """
        ...

    def format_state(self, state: Any) -> str:
        """Return a description of a state in a few lines, including all hidden information.

        Args:
            state: State of the game.
        """
        ...
