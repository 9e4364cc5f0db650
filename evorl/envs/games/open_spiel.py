"""Adapter for the games of OpenSpiel (Lanctot et al. 2019, arXiv:1908.09453)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evorl.envs.games.rules import CHANCE, TERMINAL
from evorl.envs.suites.common import import_extra
from evorl.errors import OptionError


@dataclass(frozen=True)
class OpenSpiel:
    """A game of OpenSpiel by its name, with options, such as OpenSpiel("kuhn_poker(players=3)").

    Simultaneous moves are made in turn.

    Args:
        name: Name of the game, with options in brackets.

    Raises:
        OptionError: If the name is unknown, if the game samples chance without listing probabilities, or if
            it has no tensors of information states.

    Source: Lanctot et al. 2019, arXiv:1908.09453.
    """

    name: str

    def __post_init__(self) -> None:
        kind = self.game.get_type()
        listed = kind.chance_mode != import_extra("pyspiel", "open_spiel").GameType.ChanceMode.SAMPLED_STOCHASTIC
        if not (listed and kind.provides_information_state_tensor and kind.provides_information_state_string):
            raise OptionError(f"tree={self.name}: has no information state tensors, or no chance probabilities")

    @cached_property
    def game(self) -> Any:
        """Return OpenSpiel's game, converted to moves in turn."""
        pyspiel = import_extra("pyspiel", "open_spiel")
        try:
            return pyspiel.load_game_as_turn_based(self.name)
        except pyspiel.SpielError as error:
            raise OptionError(f"tree={self.name}: {str(error).strip().partition(chr(10))[0]}") from error

    @property
    def players(self) -> int:
        return self.game.num_players()

    @property
    def num_actions(self) -> int:
        return self.game.num_distinct_actions()

    def init_state(self) -> Any:
        return self.game.new_initial_state()

    def current_player(self, state: Any) -> int:
        if state.is_terminal():
            return TERMINAL
        return CHANCE if state.is_chance_node() else state.current_player()

    def legal_actions(self, state: Any) -> Sequence[int]:
        return state.legal_actions()

    def chance_outcomes(self, state: Any) -> Sequence[tuple[int, float]]:
        return state.chance_outcomes()

    def apply_action(self, state: Any, action: int) -> Any:
        return state.child(action)

    def payoffs(self, state: Any) -> Sequence[float]:
        return state.returns()

    def information_state(self, state: Any, player: int) -> str:
        return state.information_state_string(player)

    def features(self, state: Any, player: int) -> Sequence[float]:
        return state.information_state_tensor(player)

    def format_state(self, state: Any) -> str:
        return str(state)
