"""Compare fictitious play in extensive form (XFP) with OpenSpiel's, iteration by iteration.

python scripts/trust/xfp.py                 compares the average policies of both
python scripts/trust/xfp.py --record DIR    writes OpenSpiel's policies, with which tests compare without it

OpenSpiel decides between actions of equal value by their rounding, and from there on the two diverge. The check is
therefore that each of its steps is a step towards best responses. Needs open_spiel, 2.0.2 for the record.
"""

# pyright: reportMissingImports=false

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from exact import informed, same
from open_spiel.python.algorithms import fictitious_play

from evorl.envs.games import ExtensiveFormGame, GameTree, Kuhn, Leduc, OpenSpiel
from evorl.leagues import XFP
from evorl.leagues.exact import best_response
from evorl.leagues.sequence_form import SequenceForm

GAMES = {"kuhn": (Kuhn(), "kuhn_poker", 20), "leduc": (Leduc(), "leduc_poker", 8)}


def theirs(tree: GameTree, iterations: int) -> np.ndarray:
    """Return the average policies after each iteration, [iterations, sets, actions].

    The sets are in the order of OpenSpiel's tree.
    """
    assert isinstance(tree.rules, OpenSpiel)
    solver, sets = fictitious_play.XFPSolver(tree.rules.game), informed(tree)
    found = np.zeros((iterations, *tree.legal_mask.shape))
    for iteration in range(iterations):
        solver.iteration()
        tables = solver.average_policy_tables()
        for row, name in enumerate(sets):
            for action, probability in tables[tree.owner[row]][name].items():
                found[iteration, row, action] = probability
    return found


def ours(rules: Any, iterations: int) -> np.ndarray:
    """Return the same policies computed by evorl."""
    game: Any = ExtensiveFormGame(rules)
    xfp = XFP(game)

    def step(state: Any, key: jax.Array) -> Any:
        state = xfp.step(state, key)[0]
        return state, xfp.average_strategy(state)

    keys = jax.random.split(jax.random.key(0), iterations)
    return np.asarray(jax.jit(lambda: jax.lax.scan(step, xfp.init(keys[0]), keys)[1])())


def lost(tree: GameTree, policies: np.ndarray) -> np.ndarray:
    """Return how much a player's averaged-in response loses against a best response to the policies before."""
    form = SequenceForm.from_tree(tree)
    plans = jax.vmap(form.compute_realization_plan)(jnp.asarray(policies, jnp.float32))
    counts = jnp.arange(2, 1 + len(policies))[:, None]
    answers = (counts + 1) * plans[1:] - counts * plans[:-1]

    def one(before: jax.Array, policy: jax.Array, answer: jax.Array) -> jax.Array:
        return best_response(tree, policy)[0] - (
            form.compute_counterfactual_payoffs(before) * answer[form.end_sequences]
        ).sum(1)

    return np.asarray(jax.vmap(one)(plans[:-1], jnp.asarray(policies[:-1], jnp.float32), answers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    for name, (rules, known, iterations) in GAMES.items():
        tree, other = GameTree.from_game(rules), GameTree.from_game(known)
        rows = same(tree, other)
        found = theirs(other, iterations)[:, rows]
        apart = np.abs(ours(rules, iterations) - found).max((1, 2))
        print(f"{name}: largest difference after each iteration {np.array2string(apart, precision=1)}")
        print(f"{name}: at most lost by an answer {np.abs(lost(tree, found)).max():.1e}", flush=True)
        if args.record is not None:
            args.record.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(args.record / f"{name}.npz", policies=found.astype(np.float32))


if __name__ == "__main__":
    main()
