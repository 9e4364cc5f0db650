"""Liar's dice."""

from dataclasses import dataclass
from typing import NamedTuple

from evorl.envs.games.rules import CHANCE, TERMINAL
from evorl.errors import require, require_int


class LiarsDiceState(NamedTuple):
    dice: tuple[int, ...] = ()  # those of player 0, of player 1, ..., faces from 0 on
    bids: tuple[int, ...] = ()  # in turn


@dataclass(frozen=True)
class LiarsDice:
    """Each rolls dice that only itself sees; in turn one bids how many of all show a face, more or of a higher face.

    Or one calls the last bidder a liar, and who is wrong pays the other 1; the highest face counts as every face.
    Actions are OpenSpiel's: n dice of face f are (n - 1) sides + f - 1, "liar" is the last one. Seen are one's seat,
    how many of one's dice show each face, and the bids.
    """

    numdice: int = 1
    dice_sides: int = 6
    players: int = 2

    def __post_init__(self) -> None:
        require_int("numdice", self.numdice)
        require_int("dice_sides", self.dice_sides, 2)
        require(2 <= self.players <= 10, "players", self.players, "must be from 2 to 10")

    @property
    def liar_action(self) -> int:
        """The action that ends the game."""
        return self.numdice * self.players * self.dice_sides

    @property
    def num_actions(self) -> int:
        """All bids, and to call the last one a lie."""
        return self.liar_action + 1

    def init_state(self) -> LiarsDiceState:
        return LiarsDiceState()

    def current_player(self, state: LiarsDiceState) -> int:
        if len(state.dice) < self.numdice * self.players:
            return CHANCE
        return TERMINAL if self.liar_action in state.bids else len(state.bids) % self.players

    def legal_actions(self, state: LiarsDiceState) -> list[int]:
        last = state.bids[-1] if state.bids else -1
        return list(range(last + 1, self.liar_action + bool(state.bids)))

    def chance_outcomes(self, state: LiarsDiceState) -> list[tuple[int, float]]:
        del state
        return [(face, 1 / self.dice_sides) for face in range(self.dice_sides)]

    def apply_action(self, state: LiarsDiceState, action: int) -> LiarsDiceState:
        if self.current_player(state) == CHANCE:
            return state._replace(dice=(*state.dice, action))
        return state._replace(bids=(*state.bids, action))

    def payoffs(self, state: LiarsDiceState) -> list[int]:
        less, face = divmod(state.bids[-2], self.dice_sides)
        true = sum(die in (face, self.dice_sides - 1) for die in state.dice) > less
        caller = (len(state.bids) - 1) % self.players
        bidder = (caller - 1) % self.players
        winner, loser = (bidder, caller) if true else (caller, bidder)
        return [(player == winner) - (player == loser) for player in range(self.players)]

    def player_dice(self, state: LiarsDiceState, player: int) -> tuple[int, ...]:
        """The dice of a player, sorted."""
        return tuple(sorted(state.dice[player * self.numdice : (player + 1) * self.numdice]))

    def information_state(self, state: LiarsDiceState, player: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.player_dice(state, player), state.bids

    def features(self, state: LiarsDiceState, player: int) -> list[float]:
        own = self.player_dice(state, player)
        seat = [float(i == player) for i in range(self.players)]
        faces = [own.count(face) / self.numdice for face in range(self.dice_sides)]
        return seat + faces + [float(bid in state.bids) for bid in range(self.liar_action)]

    def format_state(self, state: LiarsDiceState) -> str:
        dice = [
            f"player {i}: {' '.join(str(die + 1) for die in self.player_dice(state, i))}"
            for i in range(self.players)
            if self.player_dice(state, i)
        ]
        told = [
            "calls a liar"
            if bid == self.liar_action
            else f"bids {bid // self.dice_sides + 1} x {bid % self.dice_sides + 1}"
            for bid in state.bids
        ]
        return "\n".join([*dice, ", ".join(f"{i % self.players} {move}" for i, move in enumerate(told))])
