"""The classics among matrix games, as payoffs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from evorl.errors import OptionError, require, unknown

Nested = Sequence[Any]  # of numbers, or of such again


class Classic(NamedTuple):
    """A game of two: the payoffs of who plays rows, and those of the other one, or what they are made of."""

    rows: Nested
    other: str | Nested  # CHANGED, SAME, OPPOSITE, or payoffs by rows too
    actions: tuple[str, ...]
    source: str


CHANGED, SAME, OPPOSITE = "roles changed", "the same", "the opposite"
THREE = "a", "b", "c"
OPEN_SPIEL = "numbers as OpenSpiel's"

CLASSICS = {
    "prisoners_dilemma": Classic(
        ((3, 0), (5, 1)), CHANGED, ("cooperate", "defect"), "Axelrod and Hamilton 1981, The Evolution of Cooperation"
    ),
    "stag_hunt": Classic(((2, 0), (1, 1)), CHANGED, ("stag", "hare"), f"Rousseau 1755; {OPEN_SPIEL} matrix_sh"),
    "chicken": Classic(((0, 4), (1, 3)), CHANGED, ("dare", "chicken"), f"Russell 1959; {OPEN_SPIEL} matrix_cd"),
    "matching_pennies": Classic(((1, -1), (-1, 1)), OPPOSITE, ("heads", "tails"), "von Neumann 1928"),
    "rock_paper_scissors": Classic(
        ((0, -1, 1), (1, 0, -1), (-1, 1, 0)), OPPOSITE, ("rock", "paper", "scissors"), f"{OPEN_SPIEL} matrix_rps"
    ),
    "battle_of_the_sexes": Classic(
        ((3, 0), (0, 2)), ((2, 0), (0, 3)), ("hers", "his"), f"Luce and Raiffa 1957; {OPEN_SPIEL} matrix_bos"
    ),
    "shapley": Classic(
        ((0, 0, 1), (1, 0, 0), (0, 1, 0)),
        ((0, 1, 0), (0, 0, 1), (1, 0, 0)),
        ("rock", "paper", "scissors"),
        "Shapley 1964: fictitious play cycles",
    ),
    "coordination": Classic(((1, 0), (0, 1)), SAME, ("left", "right"), f"{OPEN_SPIEL} matrix_coordination"),
    "climbing": Classic(((11, -30, 0), (-30, 7, 6), (0, 0, 5)), SAME, THREE, "Claus and Boutilier 1998"),
    "penalty": Classic(
        ((10, 0, -100), (0, 2, 0), (-100, 0, 10)), SAME, THREE, "Claus and Boutilier 1998, with k = -100"
    ),
    "non_monotonic": Classic(
        ((8, -12, -12), (-12, 0, 0), (-12, 0, 0)), SAME, THREE, "Son et al. 2019, arXiv:1905.05408 (QTRAN)"
    ),
}


def classic(name: str) -> np.ndarray:
    """The payoffs [2, actions, actions] of a game by its name; raises OptionError."""
    if name not in CLASSICS:
        raise unknown("matrix game", name, CLASSICS)
    game = CLASSICS[name]
    rows = np.array(game.rows, np.float32)
    alike = {CHANGED: rows.T, SAME: rows, OPPOSITE: -rows}
    return np.stack([rows, alike[game.other] if isinstance(game.other, str) else np.array(game.other, np.float32)])


def tensor(payoffs: Nested, shared: bool) -> np.ndarray:
    """Payoffs [players, *actions] from nested lists, of one for all where shared; raises OptionError."""
    try:
        found = np.array(payoffs, np.float32)
    except (TypeError, ValueError) as error:
        raise OptionError(f"payoffs={payoffs}: must be numbers in lists, of one length at each depth") from error
    wanted = "must be [actions of player 0, of player 1, ...], as shared is true"
    if not shared:
        wanted = "must be [n, actions of player 0, ..., of player n - 1], or of one tensor for all with shared=true"
    right = found.ndim > 0 and found.size > 0 and (shared or found.ndim == len(found) + 1)
    require(right, "payoffs", f"of shape {list(found.shape)}", wanted)
    require(bool(np.isfinite(found).all()), "payoffs", payoffs, "must be finite")
    return np.stack([found] * found.ndim) if shared else found
