"""Kuhn poker."""

from dataclasses import dataclass
from typing import NamedTuple

from evorl.envs.games.rules import CHANCE, TERMINAL
from evorl.errors import require

PASS, BET = range(2)
RANKS = "JQKA"


class KuhnState(NamedTuple):
    cards: tuple[int, ...] = ()  # of each player
    bets: tuple[int, ...] = ()  # PASS or BET of the players in turn


@dataclass(frozen=True)
class Kuhn:
    """Kuhn poker: players with one card each pass or bet in turn.

    Each player antes 1 and is dealt one of n + 1 cards. A bet is 1. The game ends when all others have
    answered the first bet, or all have passed. The highest card wins among the players that have bet, or
    among all if nobody has. Action 0 is to pass or fold, 1 is to bet or call. The features are OpenSpiel's:
    the player's seat, its card, and the actions so far.

    Args:
        players: Number n of players, from 2 to 10.

    Raises:
        OptionError: If the number of players is not allowed.

    Sources: Kuhn 1950; Szafron et al. 2013 (three players).
    """

    players: int = 2

    num_actions = 2

    def __post_init__(self) -> None:
        require(2 <= self.players <= 10, "players", self.players, "must be from 2 to 10")

    def init_state(self) -> KuhnState:
        return KuhnState()

    def current_player(self, state: KuhnState) -> int:
        if len(state.cards) < self.players:
            return CHANCE
        last = state.bets.index(BET) if BET in state.bets else 0
        return TERMINAL if len(state.bets) == last + self.players else len(state.bets) % self.players

    def legal_actions(self, state: KuhnState) -> tuple[int, int]:
        del state
        return PASS, BET

    def chance_outcomes(self, state: KuhnState) -> list[tuple[int, float]]:
        left = [card for card in range(self.players + 1) if card not in state.cards]
        return [(card, 1 / len(left)) for card in left]

    def apply_action(self, state: KuhnState, action: int) -> KuhnState:
        if len(state.cards) < self.players:
            return state._replace(cards=(*state.cards, action))
        return state._replace(bets=(*state.bets, action))

    def pot_contributions(self, state: KuhnState) -> list[int]:
        """Return the amount that each player has in the pot.

        Args:
            state: State of the game.
        """
        return [1 + (BET in state.bets[player :: self.players]) for player in range(self.players)]

    def payoffs(self, state: KuhnState) -> list[int]:
        paid = self.pot_contributions(state)
        winner = max(range(self.players), key=lambda player: (paid[player], state.cards[player]))
        return [sum(paid) * (player == winner) - paid[player] for player in range(self.players)]

    def information_state(self, state: KuhnState, player: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return state.cards[player : player + 1], state.bets

    def features(self, state: KuhnState, player: int) -> list[int]:
        seat, card = [0] * self.players, [0] * (self.players + 1)
        bets = [0] * (2 * (2 * self.players - 1))
        seat[player] = 1
        for own in state.cards[player : player + 1]:
            card[own] = 1
        for i, bet in enumerate(state.bets):
            bets[2 * i + bet] = 1
        return seat + card + bets

    def format_state(self, state: KuhnState) -> str:
        ranks = RANKS if self.players < len(RANKS) else "0123456789X"
        cards = [f"player {player}: {ranks[card]}" for player, card in enumerate(state.cards)]
        bets = [f"{i % self.players} {'bets' if bet else 'passes'}" for i, bet in enumerate(state.bets)]
        return "\n".join([*cards, f"pot: {sum(self.pot_contributions(state))}", ", ".join(bets)])
