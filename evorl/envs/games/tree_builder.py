"""Builder of game trees: lists all histories of a finite game by its rules."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from evorl.envs.games.rules import CHANCE, TERMINAL, Rules
from evorl.errors import OptionError, require


class HistoryNode(NamedTuple):
    """A history of a game: the player that moves next, its last action, its children, and what players get and know."""

    player: int
    parent: int
    action: int
    chance_prob: float
    first_child: int
    num_children: int
    payoffs: tuple[float, ...]
    information_states: tuple[Hashable, ...]  # (player, information) pairs; () if no player moves


def build_tree_arrays(rules: Rules, limit: int) -> dict[str, Any]:
    """Return the fields of the GameTree of a game.

    It raises OptionError if the game has more nodes than the limit, or if its rules contradict themselves.
    """
    nodes: list[HistoryNode] = []
    levels, sets, features = [0], {}, {}
    level = [(rules.init_state(), (0, 0, 1.0))]
    while level:
        following: list[Any] = []
        for state, came in level:
            player = rules.current_player(state)
            choices = list_choices(rules, state, player)
            first = levels[-1] + len(level) + len(following)
            require(first + len(choices) <= limit, "limit", limit, f"the game tree of {rules!r} has more nodes")
            known = tuple((i, rules.information_state(state, i)) for i in range(rules.players)) if player >= 0 else ()
            for i, one in enumerate(known):
                if one not in features:
                    features[one] = rules.features(state, i)
            if player >= 0:
                legal = [action for action, _ in choices]
                before = sets.setdefault(known[player], legal)
                allowed = f"must be {before}, as elsewhere in the same information set of {rules!r}"
                require(legal == before, "legal actions", legal, allowed)
            paid = tuple(rules.payoffs(state)) if player == TERMINAL else (0.0,) * rules.players
            following += [
                (rules.apply_action(state, action), (len(nodes), action, chance)) for action, chance in choices
            ]
            parent, action, chance = came
            nodes.append(
                HistoryNode(player, parent, action, chance, first if choices else 0, len(choices), paid, known)
            )
        levels.append(len(nodes))
        level = following
    require_distinct_features(rules, sets, features)
    return nodes_to_arrays(nodes, sets, features, rules.num_actions) | {"level_offsets": tuple(levels)}


def list_choices(rules: Rules, state: Any, player: int) -> list[tuple[int, float]]:
    """Return the actions or outcomes that can follow a state, with the probabilities of outcomes, and 1 for actions."""
    if player == TERMINAL:
        return []
    if player == CHANCE:
        found = [(int(outcome), float(chance)) for outcome, chance in rules.chance_outcomes(state)]
        if abs(sum(chance for _, chance in found) - 1) > 1e-6:
            raise OptionError(
                f"tree={rules!r}: chance probabilities do not sum to 1 at {format_state_line(rules, state)}"
            )
        return found
    actions = [int(action) for action in rules.legal_actions(state)]
    if not actions:
        raise OptionError(f"tree={rules!r}: player {player} has no legal action at {format_state_line(rules, state)}")
    inside = all(0 <= action < rules.num_actions for action in actions)
    require(inside, "legal actions", actions, f"must be from 0 to {rules.num_actions - 1} for {rules!r}")
    return [(action, 1.0) for action in actions]


def require_distinct_features(rules: Rules, sets: Iterable[Any], features: Mapping[Any, Any]) -> None:
    """Raise OptionError if two information sets, which are (player, information) pairs, have the same features."""
    seen: dict[tuple[float, ...], Any] = {}
    for known in sets:
        other = seen.setdefault(tuple(np.asarray(features[known], np.float32).tolist()), known)
        if other != known:
            both = " and ".join(f"{information!r} of player {player}" for player, information in (other, known))
            raise OptionError(f"tree={rules!r}: features(state, player) must differ between information sets {both}")


def format_state_line(rules: Rules, state: Any) -> str:
    """Return the description of a state on one line."""
    return repr(" ".join(rules.format_state(state).split()))


def nodes_to_arrays(
    nodes: list[HistoryNode], sets: dict[Any, list[int]], features: dict[Any, Any], actions: int
) -> dict[str, Any]:
    """Convert the nodes to the arrays of a GameTree.

    The first rows of the features are the information sets; the last row is zero.
    """
    rows = {known: i for i, known in enumerate([*sets, *(known for known in features if known not in sets)])}
    nothing = (len(rows),) * len(nodes[0].payoffs)
    legal = np.zeros((len(sets), actions), bool)
    for i, allowed in enumerate(sets.values()):
        legal[i, allowed] = True
    width = max(map(len, features.values()), default=0)
    whole = "player", "parent", "action", "first_child", "num_children"
    return {name: np.array([getattr(node, name) for node in nodes], np.int32) for name in whole} | {
        "chance_prob": np.array([node.chance_prob for node in nodes], np.float32),
        "payoffs": np.array([node.payoffs for node in nodes], np.float32),
        "information_rows": np.array(
            [[rows[x] for x in node.information_states] or nothing for node in nodes], np.int32
        ),
        "features": np.array([*(features[known] for known in rows), [0.0] * width], np.float32),
        "legal_mask": legal,
        "owner": np.array([player for player, _ in sets], np.int32),
    }
