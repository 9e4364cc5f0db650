"""Liar's dice."""

from dataclasses import dataclass
from typing import NamedTuple

from evorl.envs.games.rules import CHANCE, TERMINAL
from evorl.errors import require, require_int


class LiarsDiceState(NamedTuple):
    dice: tuple[int, ...] = ()  # of player 0, of player 1, and so on; faces are counted from 0
    bids: tuple[int, ...] = ()  # of the players in turn


@dataclass(frozen=True)
class LiarsDice:
    """Liar's dice: players with hidden dice bid in turn how many dice of all players show a face.

    A bid must have a higher number of dice, or the same number and a higher face. Instead of bidding, a
    player may call the last bidder a liar, which ends the game: the one who is wrong pays 1 to the other. The
    highest face counts as every face.

    The bid "n dice with face f" is the action (n - 1) * dice_sides + f - 1, as in OpenSpiel; the last action
    is the call "liar". The features are the player's seat, the fraction of its own dice with each face, and
    the bids so far.

    Args:
        numdice: Number of dice of each player.
        dice_sides: Number of faces of a die.
        players: Number of players, from 2 to 10.

    Raises:
        OptionError: If a value is not allowed.
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
        """Return the action that calls the last bidder a liar, which ends the game."""
        return self.numdice * self.players * self.dice_sides

    @property
    def num_actions(self) -> int:
        """Return the number of actions: all bids, and the call "liar"."""
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
        """Return the dice of a player, sorted, faces counted from 0.

        Args:
            state: State of the game.
            player: Index of the player.
        """
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
