"""Compare exact values with OpenSpiel: best responses to random policies, and the exploitability of CFR+.

python scripts/trust/exact.py                 compares 100 random policies a game, and CFR+ after 10 and 100 iterations
python scripts/trust/exact.py --record DIR    writes OpenSpiel's results for the first few; tests compare without it

Needs open_spiel, 2.0.2 for the record. --policies and --games make it shorter.
"""

# pyright: reportMissingImports=false

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from open_spiel.python import policy as tables
from open_spiel.python.algorithms import cfr, expected_game_score, exploitability

from evorl.envs.games import GameTree, Goofspiel, Kuhn, Leduc, LiarsDice, OpenSpiel
from evorl.leagues.cfr import cfr_plus
from evorl.leagues.exact import best_response, nash_conv

GAMES = {
    "kuhn": (Kuhn(), "kuhn_poker"),
    "kuhn3": (Kuhn(3), "kuhn_poker(players=3)"),
    "goofspiel": (Goofspiel(4), "goofspiel(num_cards=4,points_order=descending,imp_info=True)"),
    "goofspiel_seen": (
        Goofspiel(4, imp_info=False, returns_type="point_difference"),
        "goofspiel(num_cards=4,points_order=descending,returns_type=point_difference)",
    ),
    "goofspiel3": (
        Goofspiel(3, players=3, points_order="random", returns_type="total_points"),
        "goofspiel(players=3,num_cards=3,imp_info=True,returns_type=total_points)",
    ),
    "liars_dice": (LiarsDice(dice_sides=3), "liars_dice(dice_sides=3)"),
    "leduc": (Leduc(), "leduc_poker"),
}
RECORDED = 4  # policies
CFR_PLUS = {"leduc": (10,)} | dict.fromkeys(("kuhn", "kuhn3", "goofspiel", "liars_dice"), (10, 100))  # iterations


def random_policies(legal: np.ndarray, n: int) -> np.ndarray:
    """Sample random policies [n, sets, actions]; every third is a pure one."""
    rng = np.random.default_rng(0)
    drawn = np.where(legal, rng.random((n, *legal.shape)), 0)
    drawn[::3] = drawn[::3] == drawn[::3].max(-1, keepdims=True)
    return drawn / drawn.sum(-1, keepdims=True)


def same(ours: GameTree, theirs: GameTree) -> np.ndarray:
    """Check that all histories are equal; return OpenSpiel's information set for each of evorl's.

    evorl's information sets may be finer.
    """
    for name in ("player", "parent", "action", "chance_prob", "payoffs"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-6, err_msg=name)
    sets = ours.information_sets[ours.player >= 0]
    known = theirs.information_sets[ours.player >= 0][np.unique(sets, return_index=True)[1]]
    np.testing.assert_array_equal(known[sets], theirs.information_sets[ours.player >= 0])
    return known


def theirs(tree: GameTree, policies: np.ndarray, iterations: list[int]) -> dict[str, np.ndarray]:
    """Return OpenSpiel's values of the best responses, NashConv, and NashConv of CFR+."""
    assert isinstance(tree.rules, OpenSpiel)
    game = tree.rules.game
    table: Any = tables.TabularPolicy(game)
    rows = np.array([table.state_lookup[known] for known in informed(tree)])
    best, conv = [], []
    for policy in policies:
        table.action_probability_array[rows] = policy
        found: Any = exploitability.nash_conv(game, table, return_only_nash_conv=False)
        best.append(np.asarray(found.player_improvements) + values(game, table))
        conv.append(found.nash_conv)
    solver, curve = cfr.CFRPlusSolver(game), []
    for iteration in range(1, 1 + max(iterations, default=0)):
        solver.evaluate_and_update_policy()
        if iteration in iterations:
            curve.append(exploitability.nash_conv(game, solver.average_policy()))
    return {"best": np.array(best), "nash_conv": np.array(conv), "cfr_plus": np.array(curve)}


def values(game: Any, table: Any) -> np.ndarray:
    """Return the payoff of each player if all play a policy, by OpenSpiel."""
    return np.asarray(expected_game_score.policy_value(game.new_initial_state(), [table] * game.num_players()))


def informed(tree: GameTree) -> list[str]:
    """Return OpenSpiel's name of each information set of its own tree."""
    found: dict[int, str] = {}
    level = [(0, tree.rules.init_state())]
    while level:
        following = []
        for node, state in level:
            if tree.information_sets[node] >= 0:
                found.setdefault(
                    int(tree.information_sets[node]), state.information_state_string(int(tree.player[node]))
                )
            kids = range(tree.first_child[node], tree.first_child[node] + tree.num_children[node])
            following += [(kid, tree.rules.apply_action(state, int(tree.action[kid]))) for kid in kids]
        level = following
    return [found[i] for i in range(len(found))]


def ours(tree: GameTree, policies: np.ndarray, iterations: list[int]) -> dict[str, np.ndarray]:
    """Return the same quantities computed by evorl."""
    drawn = jnp.asarray(policies, jnp.float32)
    best = jax.jit(jax.vmap(lambda policy: best_response(tree, policy)[0]))(drawn)
    conv = jax.jit(jax.vmap(lambda policy: nash_conv(tree, policy)))(drawn)
    after = jax.jit(lambda t: nash_conv(tree, cfr_plus(tree, t)))
    found = {"best": best, "nash_conv": conv, "cfr_plus": [after(t) for t in iterations]}
    return {name: np.asarray(x) for name, x in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--policies", type=int, default=100)
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=list(GAMES))
    args = parser.parse_args()
    for key in args.games:
        tree, known = GameTree.from_game(GAMES[key][0]), GameTree.from_game(GAMES[key][1])
        rows = same(tree, known)
        policies = random_policies(known.legal_mask, RECORDED if args.record else args.policies)
        iterations = list(CFR_PLUS.get(key, ()))  # none if regrets are 0 up to rounding, which decides the policies
        wanted, found = theirs(known, policies, iterations), ours(tree, policies[:, rows], iterations)
        apart = ", ".join(f"{what} {np.abs(found[what] - x).max(initial=0):.1e}" for what, x in wanted.items())
        print(
            f"{key}: {len(tree.player):,} histories, {len(policies)} policies, largest differences: {apart}", flush=True
        )
        if args.record is not None:
            recorded = wanted | {"policies": policies[:, rows]}
            columns: dict[str, Any] = {what: x.astype(np.float32) for what, x in recorded.items()}
            args.record.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(args.record / f"{key}.npz", **columns)


if __name__ == "__main__":
    main()
