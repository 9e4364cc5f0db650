"""Compare Kuhn and Leduc poker with OpenSpiel's games, history by history.

python scripts/trust/game_trees.py                 compares: player to move, legal actions, features, payoffs, chance
python scripts/trust/game_trees.py --record DIR    writes OpenSpiel's results, with which tests compare without it

Needs open_spiel, 2.0.2 for the record. All players' features are compared after every history, including chance nodes
and terminal ones.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from evorl.envs.games import Kuhn, Leduc, OpenSpiel
from evorl.envs.games.rules import CHANCE, TERMINAL, Rules

GAMES = {"kuhn": (Kuhn(), "kuhn_poker"), "kuhn3": (Kuhn(3), "kuhn_poker(players=3)"), "leduc": (Leduc(), "leduc_poker")}


def walked(rules: Rules) -> dict[str, np.ndarray]:
    """Return data of all histories, each before its continuations, smaller actions first.

    The data are the player to move, the legal actions or chance outcomes (bits), payoffs, features of all
    players (bits), and the probability of the last outcome.
    """
    rows: dict[str, list[Any]] = {name: [] for name in ("player", "choices", "payoffs", "features", "chance")}
    stack = [(rules.init_state(), 1.0)]
    while stack:
        state, chance = stack.pop()
        player = rules.current_player(state)
        after = list(rules.chance_outcomes(state)) if player == CHANCE else []
        if player >= 0:
            after = [(action, 1.0) for action in rules.legal_actions(state)]
        rows["player"].append(player)
        rows["choices"].append(sum(1 << action for action, _ in after))
        rows["payoffs"].append(rules.payoffs(state) if player == TERMINAL else [0] * rules.players)
        rows["features"].append([rules.features(state, i) for i in range(rules.players)])
        rows["chance"].append(chance)
        stack += [(rules.apply_action(state, action), p) for action, p in reversed(after)]
    features = np.array(rows["features"])
    assert np.isin(features, (0, 1)).all()
    dtypes = {"player": np.int8, "choices": np.uint8, "payoffs": np.int8, "chance": np.float32}
    found = {name: np.array(rows[name], dtype) for name, dtype in dtypes.items()}
    assert (found["payoffs"] == np.array(rows["payoffs"])).all()
    return found | {"features": np.packbits(features.astype(bool), axis=-1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    folder = parser.parse_args().record
    for name, (ours, theirs) in GAMES.items():
        wanted, found = walked(OpenSpiel(theirs)), walked(ours)
        apart = [key for key, x in wanted.items() if not np.array_equal(found[key], x)]
        print(f"{name}: {len(wanted['player']):,} histories, different: {', '.join(apart) or 'nothing'}", flush=True)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            columns: dict[str, Any] = wanted
            np.savez_compressed(folder / f"{name}.npz", **columns)


if __name__ == "__main__":
    main()
