"""Leduc poker."""

from dataclasses import dataclass
from typing import NamedTuple

from evorl.envs.games.rules import CHANCE, TERMINAL

FOLD, CALL, RAISE = range(3)
RAISE_SIZES = 2, 4  # by round
MAX_RAISES = 2  # per round
CARDS, RANKS = 6, "JQK"  # two consecutive cards of each rank
MAX_TURNS = 4  # per round
ACTION_NAMES = "folds", "calls", "raises"

Moves = tuple[int, ...]


class LeducState(NamedTuple):
    cards: tuple[int, ...] = ()  # of player 0, of player 1, public
    rounds: tuple[Moves, Moves] = ((), ())


def is_round_closed(moves: Moves) -> bool:
    """Return whether a betting round has ended without a fold."""
    return len(moves) > 1 and moves[-1] == CALL


@dataclass(frozen=True)
class Leduc:
    """Leduc poker: a betting round with one private card each, a public card, and a second betting round.

    Both players ante 1. The deck has 6 cards, two of each of three ranks. A raise is 2 in the first round and
    4 in the second, with at most two raises per round. A pair with the public card wins, otherwise the higher
    rank; equal ranks split the pot. Action 0 is to fold, 1 to call or check, 2 to raise. The features are
    OpenSpiel's: the player's seat, its card, the public card, and the calls and raises of both rounds.

    Source: Southey et al. 2005, arXiv:1207.1411.
    """

    players = 2
    num_actions = 3

    def init_state(self) -> LeducState:
        return LeducState()

    def current_player(self, state: LeducState) -> int:
        first, second = state.rounds
        if FOLD in first + second or is_round_closed(second):
            return TERMINAL
        if len(state.cards) < 2 + is_round_closed(first):
            return CHANCE
        return len(second if is_round_closed(first) else first) % 2

    def legal_actions(self, state: LeducState) -> list[int]:
        moves = state.rounds[len(state.cards) - 2]
        raised = moves[-1:] == (RAISE,)
        return [FOLD] * raised + [CALL] + [RAISE] * (moves.count(RAISE) < MAX_RAISES)

    def chance_outcomes(self, state: LeducState) -> list[tuple[int, float]]:
        left = [card for card in range(CARDS) if card not in state.cards]
        return [(card, 1 / len(left)) for card in left]

    def apply_action(self, state: LeducState, action: int) -> LeducState:
        if self.current_player(state) == CHANCE:
            return state._replace(cards=(*state.cards, action))
        first, second = state.rounds
        rounds = ((*first, action), second) if len(state.cards) == 2 else (first, (*second, action))
        return state._replace(rounds=rounds)

    def pot_contributions(self, state: LeducState) -> list[int]:
        """Return the amount that each player has in the pot.

        Args:
            state: State of the game.
        """
        paid = [1, 1]
        for moves, size in zip(state.rounds, RAISE_SIZES, strict=True):
            for i, move in enumerate(moves):
                if move != FOLD:
                    paid[i % 2] = paid[1 - i % 2] + size * (move == RAISE)
        return paid

    def payoffs(self, state: LeducState) -> list[int]:
        paid = self.pot_contributions(state)
        for moves in state.rounds:
            if FOLD in moves:
                loser = (len(moves) - 1) % 2
                break
        else:
            *own, both = (card // 2 for card in state.cards)
            worth = [(card == both, card) for card in own]
            if worth[0] == worth[1]:
                return [0, 0]
            loser = int(worth[0] > worth[1])
        return [paid[loser] * (-1 if player == loser else 1) for player in range(2)]

    def information_state(
        self, state: LeducState, player: int
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Moves, Moves]]:
        return state.cards[player:2][:1], state.cards[2:], state.rounds

    def features(self, state: LeducState, player: int) -> list[int]:
        own, both, _ = self.information_state(state, player)
        bits = [0] * (2 + 2 * CARDS + 2 * 2 * MAX_TURNS)
        bits[player] = 1
        for card in own:
            bits[2 + card] = 1
        for card in both:
            bits[2 + CARDS + card] = 1
        for i, moves in enumerate(state.rounds):
            for j, move in enumerate(moves):
                if move != FOLD:
                    bits[2 + 2 * CARDS + 2 * (MAX_TURNS * i + j) + move - CALL] = 1
        return bits

    def format_state(self, state: LeducState) -> str:
        names = "player 0", "player 1", "both"
        cards = [f"{name}: {RANKS[card // 2]}" for name, card in zip(names, state.cards, strict=False)]
        bets = [", ".join(f"{i % 2} {ACTION_NAMES[move]}" for i, move in enumerate(moves)) for moves in state.rounds]
        return "\n".join([*cards, f"pot: {sum(self.pot_contributions(state))}", *bets])
