"""Compare the time of an iteration of fictitious play in extensive form (XFP) with OpenSpiel, in milliseconds.

PJRT_NPROC=1 taskset -c 0 python scripts/benchmarks/xfp.py [--iterations 1000] [--theirs 5] [--games NAME ...]

Times are CPU time of the process. evorl runs all iterations in one scan and also computes the NashConv of each, which
OpenSpiel's iterations do not include; its time is the median of the repeats. Needs open_spiel.
"""

# pyright: reportMissingImports=false

import argparse
import os
import time
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")

import jax
import numpy as np
import pyspiel
from open_spiel.python.algorithms import fictitious_play
from peers_timing import compiled, surroundings, timed

from evorl.envs.games import ExtensiveFormGame, Kuhn, Leduc
from evorl.leagues import XFP

GAMES = {"kuhn": (Kuhn(), "kuhn_poker"), "leduc": (Leduc(), "leduc_poker")}


def theirs(name: str, iterations: int) -> float:
    """Return the median CPU seconds of an iteration in OpenSpiel, without the first."""
    solver, spent = fictitious_play.XFPSolver(pyspiel.load_game(name)), []
    for _ in range(iterations + 1):
        begin = time.process_time()
        solver.iteration()
        spent.append(time.process_time() - begin)
    return float(np.median(spent[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--theirs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=list(GAMES))
    args = parser.parse_args()
    print(surroundings(args.repeats), flush=True)
    for name, (rules, known) in GAMES.items():
        if name not in args.games:
            continue
        game: Any = ExtensiveFormGame(rules)
        xfp = XFP(game)

        def run(key: jax.Array, xfp: XFP = xfp) -> jax.Array:
            state = xfp.init(key)
            return jax.lax.scan(xfp.step, state, jax.random.split(key, args.iterations))[1]["nash_conv"]

        program, compiling = compiled(run, jax.random.key(0))
        own = timed(program, jax.random.key(0), repeats=args.repeats)[1] / args.iterations
        other = theirs(known, args.theirs)
        print(
            f"{name:6} evorl {1e3 * own:.4f} ms, compiled in {compiling:.2f} s; "
            f"OpenSpiel {1e3 * other:.1f} ms; {other / own:.0f} times",
            flush=True,
        )


if __name__ == "__main__":
    main()
