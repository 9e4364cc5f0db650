"""Goofspiel."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evorl.envs.games.rules import CHANCE, TERMINAL
from evorl.errors import require, require_int

POINTS_ORDERS = "random", "ascending", "descending"
RETURNS_TYPES = "win_loss", "point_difference", "total_points"


class GoofspielState(NamedTuple):
    prizes: tuple[int, ...] = ()  # of each round
    cards: tuple[int, ...] = ()  # bids, in the order of rounds and players


@dataclass(frozen=True)
class Goofspiel:
    """Goofspiel: in each round, all players bid a card for a prize, which the highest bid wins if it is unique.

    Cards have values from 1 to n, and prizes are worth 1 to n points. The bids of a round are made without
    knowing the others. The last cards are bid automatically, as no choice is left. Players remember all that
    they have learned.

    An action is the value of a card minus 1. Actions and options are OpenSpiel's. The features are the
    player's seat, its own bids, the prizes, their winners and the points of all players, and all bids if they
    are known.

    Args:
        num_cards: Number n of cards of each player, and of prizes.
        players: Number of players, from 2 to 10.
        points_order: Order of the prizes: "random", "ascending" or "descending".
        imp_info: Whether players learn only who has won a round; otherwise, they learn all bids of it.
        returns_type: Payoffs: the points ("total_points"), the points minus their mean ("point_difference"),
            or "win_loss": those with the most points share 1 equally, the others pay it in equal parts, and
            all get 0 if all have the same points.

    Raises:
        OptionError: If a value is not allowed.

    Source: Ross 1971.
    """

    num_cards: int = 4
    players: int = 2
    points_order: str = "descending"
    imp_info: bool = True
    returns_type: str = "win_loss"

    def __post_init__(self) -> None:
        require_int("num_cards", self.num_cards, 2)
        require(2 <= self.players <= 10, "players", self.players, "must be from 2 to 10")
        for name, value, allowed in (
            ("points_order", self.points_order, POINTS_ORDERS),
            ("returns_type", self.returns_type, RETURNS_TYPES),
        ):
            require(value in allowed, name, value, f"must be one of {', '.join(allowed)}")

    @property
    def num_actions(self) -> int:
        """Return the number of actions, which is the number of cards."""
        return self.num_cards

    def init_state(self) -> GoofspielState:
        prizes = range(1, self.num_cards + 1)
        in_order = {"random": (), "ascending": tuple(prizes), "descending": tuple(prizes[::-1])}
        return GoofspielState(in_order[self.points_order])

    def current_player(self, state: GoofspielState) -> int:
        rounds, player = divmod(len(state.cards), self.players)
        if rounds == self.num_cards:
            return TERMINAL
        return CHANCE if rounds == len(state.prizes) else player

    def legal_actions(self, state: GoofspielState) -> list[int]:
        own = state.cards[self.current_player(state) :: self.players]
        return [card - 1 for card in self.remaining_cards(own)]

    def remaining_cards(self, cards: Sequence[int]) -> list[int]:
        """Return all values from 1 to n that are not among the given cards.

        Args:
            cards: Values of cards or prizes.
        """
        return [card for card in range(1, self.num_cards + 1) if card not in cards]

    def chance_outcomes(self, state: GoofspielState) -> list[tuple[int, float]]:
        left = self.remaining_cards(state.prizes)
        return [(prize - 1, 1 / len(left)) for prize in left]

    def apply_action(self, state: GoofspielState, action: int) -> GoofspielState:
        if self.current_player(state) == CHANCE:
            return state._replace(prizes=(*state.prizes, action + 1))
        state = state._replace(cards=(*state.cards, action + 1))
        if len(state.cards) != (self.num_cards - 1) * self.players:
            return state
        last = [
            card for player in range(self.players) for card in self.remaining_cards(state.cards[player :: self.players])
        ]
        return GoofspielState((*state.prizes, *self.remaining_cards(state.prizes)), (*state.cards, *last))

    def round_winners(self, state: GoofspielState) -> list[int]:
        """Return the winner of each completed round, or the number of players if nobody has won it.

        Args:
            state: State of the game.
        """
        n, found = self.players, []
        for i in range(len(state.cards) // n):
            bids = state.cards[i * n : (i + 1) * n]
            found.append(bids.index(max(bids)) if bids.count(max(bids)) == 1 else n)
        return found

    def points(self, state: GoofspielState) -> list[int]:
        """Return the points of each player.

        Args:
            state: State of the game.
        """
        won = list(zip(self.round_winners(state), state.prizes, strict=False))
        return [sum(prize for winner, prize in won if winner == player) for player in range(self.players)]

    def payoffs(self, state: GoofspielState) -> list[float]:
        points = self.points(state)
        if self.returns_type == "total_points":
            return [float(own) for own in points]
        if self.returns_type == "point_difference":
            return [own - sum(points) / self.players for own in points]
        most = points.count(max(points))
        if most == self.players:
            return [0.0] * self.players
        return [1 / most if own == max(points) else -1 / (self.players - most) for own in points]

    def information_state(self, state: GoofspielState, player: int) -> tuple[object, ...]:
        rounds = len(state.cards) // self.players
        public = () if self.imp_info else state.cards[: rounds * self.players]
        return state.cards[player :: self.players], state.prizes[: rounds + 1], tuple(self.round_winners(state)), public

    def features(self, state: GoofspielState, player: int) -> list[float]:
        own, prizes, winners, public = self.information_state(state, player)
        rounds, points = self.num_cards - 1, self.points(state)
        seat = [float(i == player) for i in range(self.players)]
        everybody = [] if self.imp_info else self._encode_one_hot(public, rounds * self.players, 1, self.num_cards)
        cards = self._encode_one_hot(own, rounds, 1, self.num_cards) + self._encode_one_hot(
            prizes, rounds, 1, self.num_cards
        )
        earned = [x / sum(range(self.num_cards + 1)) for x in points]
        return seat + cards + self._encode_one_hot(winners, rounds, 0, self.players) + earned + everybody

    def _encode_one_hot(self, numbers: object, n: int, low: int, high: int) -> list[float]:
        """Encode at most n numbers from low to high as one-hot vectors, concatenated and padded with zeros."""
        assert isinstance(numbers, tuple)
        padded = (*numbers, *(None,) * n)[:n]
        return [float(number == x) for number in padded for x in range(low, high + 1)]

    def format_state(self, state: GoofspielState) -> str:
        shown = state.prizes[: len(state.cards) // self.players + 1]
        bids = [f"player {i} bids {' '.join(map(str, state.cards[i :: self.players]))}" for i in range(self.players)]
        return "\n".join([f"prizes: {' '.join(map(str, shown))}", *bids, f"points: {self.points(state)}"])
