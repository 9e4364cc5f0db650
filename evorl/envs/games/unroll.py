"""From the rules of a finite game to all of its histories."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from evorl.envs.games.rules import CHANCE, OVER, Rules
from evorl.errors import OptionError, require


class Node(NamedTuple):
    """A history: who moves after it, what led to it, its children, what is paid, and what each player knows."""

    player: int
    parent: int
    action: int
    chance: float
    first: int
    num_children: int
    payoffs: tuple[float, ...]
    known: tuple[Hashable, ...]  # () where no player is to move


def unrolled(rules: Rules, limit: int) -> dict[str, Any]:
    """The fields of the GameTree of rules; raises OptionError above so many nodes, and where rules are at odds."""
    nodes: list[Node] = []
    levels, sets, features = [0], {}, {}
    level = [(rules.start(), (0, 0, 1.0))]
    while level:
        following: list[Any] = []
        for state, came in level:
            player = rules.mover(state)
            choices = chosen(rules, state, player)
            first = levels[-1] + len(level) + len(following)
            require(first + len(choices) <= limit, "limit", limit, f"{rules!r} has more nodes than that")
            known = tuple((i, rules.information(state, i)) for i in range(rules.players)) if player >= 0 else ()
            for i, one in enumerate(known):
                if one not in features:
                    features[one] = rules.features(state, i)
            if player >= 0:
                legal = [action for action, _ in choices]
                before = sets.setdefault(known[player], legal)
                allowed = f"of {rules!r} are {before} elsewhere in the same information set"
                require(legal == before, "legal actions", legal, allowed)
            paid = tuple(rules.payoffs(state)) if player == OVER else (0.0,) * rules.players
            following += [(rules.after(state, action), (len(nodes), action, chance)) for action, chance in choices]
            parent, action, chance = came
            nodes.append(Node(player, parent, action, chance, first if choices else 0, len(choices), paid, known))
        levels.append(len(nodes))
        level = following
    return arrays(nodes, sets, features, rules.num_actions) | {"levels": tuple(levels)}


def chosen(rules: Rules, state: Any, player: int) -> list[tuple[int, float]]:
    """The actions or outcomes after a state, each with its probability where chance has it, else with 1."""
    if player == OVER:
        return []
    if player == CHANCE:
        found = [(int(outcome), float(chance)) for outcome, chance in rules.chances(state)]
        if abs(sum(chance for _, chance in found) - 1) > 1e-6:
            raise OptionError(f"tree={rules!r}: probabilities of chance do not sum to 1 at {told(rules, state)}")
        return found
    actions = [int(action) for action in rules.legal(state)]
    if not actions:
        raise OptionError(f"tree={rules!r}: no action of player {player} is legal at {told(rules, state)}")
    inside = all(0 <= action < rules.num_actions for action in actions)
    require(inside, "legal actions", actions, f"of {rules!r} must be from 0 to {rules.num_actions - 1}")
    return [(action, 1.0) for action in actions]


def told(rules: Rules, state: Any) -> str:
    """A state on one line."""
    return repr(" ".join(rules.text(state).split()))


def arrays(nodes: list[Node], sets: dict[Any, list[int]], features: dict[Any, Any], actions: int) -> dict[str, Any]:
    """What was found as arrays; information sets are the first rows that are seen, and a row of nothing is the last."""
    rows = {known: i for i, known in enumerate([*sets, *(known for known in features if known not in sets)])}
    nothing = (len(rows),) * len(nodes[0].payoffs)
    legal = np.zeros((len(sets), actions), bool)
    for i, allowed in enumerate(sets.values()):
        legal[i, allowed] = True
    width = max(map(len, features.values()), default=0)
    whole = "player", "parent", "action", "first", "num_children"
    return {name: np.array([getattr(node, name) for node in nodes], np.int32) for name in whole} | {
        "chance": np.array([node.chance for node in nodes], np.float32),
        "payoffs": np.array([node.payoffs for node in nodes], np.float32),
        "seen": np.array([[rows[known] for known in node.known] or nothing for node in nodes], np.int32),
        "features": np.array([*(features[known] for known in rows), [0.0] * width], np.float32),
        "legal": legal,
        "owner": np.array([player for player, _ in sets], np.int32),
    }
