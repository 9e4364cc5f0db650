"""Payoffs of classic normal-form games."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from evorl.errors import OptionError, require, unknown_name_error

NestedNumbers = Sequence[Any]  # nested sequences of numbers


class ClassicGame(NamedTuple):
    """A two-player game: the payoffs of the row player, and either the column player's payoffs or how they follow."""

    row_payoffs: NestedNumbers
    column_payoffs: str | NestedNumbers  # CHANGED, SAME, OPPOSITE, or payoffs in the same layout
    actions: tuple[str, ...]
    source: str


CHANGED, SAME, OPPOSITE = "roles changed", "the same", "the opposite"
ABC_ACTIONS = "a", "b", "c"
OPEN_SPIEL_SOURCE = "numbers as OpenSpiel's"

CLASSICS = {
    "prisoners_dilemma": ClassicGame(
        ((3, 0), (5, 1)), CHANGED, ("cooperate", "defect"), "Axelrod and Hamilton 1981, The Evolution of Cooperation"
    ),
    "stag_hunt": ClassicGame(
        ((2, 0), (1, 1)), CHANGED, ("stag", "hare"), f"Rousseau 1755; {OPEN_SPIEL_SOURCE} matrix_sh"
    ),
    "chicken": ClassicGame(
        ((0, 4), (1, 3)), CHANGED, ("dare", "chicken"), f"Russell 1959; {OPEN_SPIEL_SOURCE} matrix_cd"
    ),
    "matching_pennies": ClassicGame(((1, -1), (-1, 1)), OPPOSITE, ("heads", "tails"), "von Neumann 1928"),
    "rock_paper_scissors": ClassicGame(
        ((0, -1, 1), (1, 0, -1), (-1, 1, 0)), OPPOSITE, ("rock", "paper", "scissors"), f"{OPEN_SPIEL_SOURCE} matrix_rps"
    ),
    "battle_of_the_sexes": ClassicGame(
        ((3, 0), (0, 2)), ((2, 0), (0, 3)), ("hers", "his"), f"Luce and Raiffa 1957; {OPEN_SPIEL_SOURCE} matrix_bos"
    ),
    "shapley": ClassicGame(
        ((0, 0, 1), (1, 0, 0), (0, 1, 0)),
        ((0, 1, 0), (0, 0, 1), (1, 0, 0)),
        ("rock", "paper", "scissors"),
        "Shapley 1964: fictitious play cycles",
    ),
    "coordination": ClassicGame(((1, 0), (0, 1)), SAME, ("left", "right"), f"{OPEN_SPIEL_SOURCE} matrix_coordination"),
    "climbing": ClassicGame(((11, -30, 0), (-30, 7, 6), (0, 0, 5)), SAME, ABC_ACTIONS, "Claus and Boutilier 1998"),
    "penalty": ClassicGame(
        ((10, 0, -100), (0, 2, 0), (-100, 0, 10)), SAME, ABC_ACTIONS, "Claus and Boutilier 1998, with k = -100"
    ),
    "non_monotonic": ClassicGame(
        ((8, -12, -12), (-12, 0, 0), (-12, 0, 0)), SAME, ABC_ACTIONS, "Son et al. 2019, arXiv:1905.05408 (QTRAN)"
    ),
}


def get_classic_payoffs(name: str) -> np.ndarray:
    """Return the payoffs of a game by its name, [2, actions, actions]; raise OptionError if the name is unknown."""
    if name not in CLASSICS:
        raise unknown_name_error("matrix game", name, CLASSICS)
    game = CLASSICS[name]
    rows = np.array(game.row_payoffs, np.float32)
    alike = {CHANGED: rows.T, SAME: rows, OPPOSITE: -rows}
    return np.stack(
        [
            rows,
            alike[game.column_payoffs]
            if isinstance(game.column_payoffs, str)
            else np.array(game.column_payoffs, np.float32),
        ]
    )


def build_payoff_tensor(payoffs: NestedNumbers, shared: bool) -> np.ndarray:
    """Build the payoffs, [players, *actions], from nested lists; raise OptionError if these are not valid.

    If `shared`, the lists are one tensor, [*actions], the payoff of all players.
    """
    try:
        found = np.array(payoffs, np.float32)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"payoffs={payoffs}: must be nested lists of numbers, with equal lengths at each depth"
        ) from error
    wanted = "must be [actions of player 0, actions of player 1, ...] with shared=true"
    if not shared:
        wanted = "must be [n, actions of player 0, ..., actions of player n - 1], or one tensor with shared=true"
    right = found.ndim > 0 and found.size > 0 and (shared or found.ndim == len(found) + 1)
    require(right, "payoffs", f"shape {list(found.shape)}", wanted)
    require(bool(np.isfinite(found).all()), "payoffs", payoffs, "must be finite")
    return np.stack([found] * found.ndim) if shared else found
