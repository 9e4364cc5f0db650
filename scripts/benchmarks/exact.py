"""Time exact values of random policies, evaluated in one program: milliseconds per policy, CPU seconds to compile.

PJRT_NPROC=1 taskset -c 0 python scripts/benchmarks/exact.py [--policies 64] [--repeats 20] [--games NAME ...]

Timed are NashConv, best responses as tables, payoffs of all policies against all (per cell of the matrix), and one
iteration of CFR+ (one at a time). Times are CPU time of the process, the median of the repeats.
"""

import argparse
import os

os.environ.setdefault("PJRT_NPROC", "1")

import jax
import jax.numpy as jnp
from peers_timing import compiled, surroundings, timed

from evorl.envs.games import GameTree, Goofspiel, Kuhn, Leduc, LiarsDice
from evorl.leagues.cfr import cfr_plus
from evorl.leagues.exact import best_response, compute_payoffs, nash_conv
from evorl.leagues.tabular_policies import normalize_policy

GAMES = {"kuhn": Kuhn(), "leduc": Leduc(), "goofspiel": Goofspiel(), "liars_dice": LiarsDice(dice_sides=3)}
ITERATIONS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=list(GAMES))
    args = parser.parse_args()
    print(surroundings(args.repeats), flush=True)
    for name in args.games:
        tree = GameTree.from_game(GAMES[name])
        drawn = jax.random.uniform(jax.random.key(0), (args.policies, *tree.legal_mask.shape))
        policies = jax.vmap(lambda x, tree=tree: normalize_policy(tree, jnp.where(tree.legal_mask, x, 0)))(drawn)
        cases = {
            "NashConv": (lambda x, tree=tree: jax.vmap(lambda p: nash_conv(tree, p))(x), args.policies),
            "best responses": (lambda x, tree=tree: jax.vmap(lambda p: best_response(tree, p))(x), args.policies),
            "payoffs": (lambda x, tree=tree: compute_payoffs(tree, x), args.policies**tree.players),
            "CFR+": (lambda x, tree=tree: cfr_plus(tree, ITERATIONS + 0 * x[0, 0, 0].astype(int)), ITERATIONS),
        }
        for what, (function, work) in cases.items():
            program, compiling = compiled(function, policies)
            cpu = timed(program, policies, repeats=args.repeats)[1]
            print(f"{name:12} {what:15} {1e3 * cpu / work:10.5f} ms, compiled in {compiling:.2f} s", flush=True)


if __name__ == "__main__":
    main()
