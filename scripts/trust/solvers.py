"""Compare meta-solvers with SciPy's linear program and OpenSpiel's solvers on random games.

python scripts/trust/solvers.py [--games 50] [--seed 0]       needs the extra open-spiel, and networkx

The games have 2 or 3 players with 2 to 6 policies each; every second zero-sum game has ties. Prints a Markdown table of
the largest difference of each solver; the exit code is 1 if one is above its allowed value.
"""

# pyright: reportMissingImports=false

import argparse
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from open_spiel.python.algorithms.projected_replicator_dynamics import projected_replicator_dynamics
from open_spiel.python.egt import alpharank
from scipy.optimize import linprog

from evorl.leagues.alpha_rank import AlphaRank
from evorl.leagues.nash import Nash
from evorl.leagues.replicator import ProjectedReplicator

CAPACITY, STEPS = 6, 2000  # steps of the dynamics; 50,000 take OpenSpiel seconds a game
ALLOWED = {"Nash: value": 1e-4, "Nash: gap": 1e-4, "ProjectedReplicator": 1e-4, "AlphaRank": 1e-4}


def embedded(payoffs: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Return the game in a larger table with empty entries, and its mask."""
    shape = payoffs.shape[1:]
    table = np.full((len(shape), *[CAPACITY] * len(shape)), np.nan, np.float32)
    table[(slice(None), *map(slice, shape))] = payoffs
    return jnp.asarray(table), jnp.asarray([np.arange(CAPACITY) < n for n in shape])


def value(a: np.ndarray) -> float:
    rows, columns = a.shape
    bounds = [(0, None)] * rows + [(None, None)]
    at_least, even = np.c_[-a.T, np.ones(columns)], [np.r_[np.ones(rows), 0]]
    return -linprog(np.r_[np.zeros(rows), -1], at_least, np.zeros(columns), even, [1], bounds).fun


def compare(payoffs: np.ndarray, solvers: dict[str, Any]) -> dict[str, float]:
    """Return the distance of each solver from its reference."""
    given, shape, found = embedded(payoffs), payoffs.shape[1:], {}
    if len(shape) == 2 and not payoffs.sum(0).any():
        (x, y), gap = solvers["Nash"](*given)
        scale = max(float(np.ptp(payoffs)), 1e-6)
        found["Nash: value"] = abs(x[: shape[0]] @ payoffs[0] @ y[: shape[1]] - value(payoffs[0])) / scale
        found["Nash: gap"] = gap / scale
    tables = list(payoffs.astype(float))
    weights = solvers["ProjectedReplicator"](*given)[0]
    expected = projected_replicator_dynamics(tables, prd_iterations=STEPS, prd_dt=1e-3, prd_gamma=1e-10)
    found["ProjectedReplicator"] = max(abs(w[: len(x)] - x).max() for w, x in zip(weights, expected, strict=True))
    ranked = np.asarray(solvers["AlphaRank"](*given))[tuple(map(slice, shape))].reshape(-1)
    found["AlphaRank"] = np.abs(ranked - alpharank.sweep_pi_vs_epsilon(tables)).max()
    return {name: float(x) for name, x in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, apart = np.random.default_rng(options.seed), {name: [] for name in ALLOWED}
    solvers = {
        "Nash": jax.jit(Nash()),
        "ProjectedReplicator": jax.jit(ProjectedReplicator(steps=STEPS)),
        "AlphaRank": jax.jit(AlphaRank().compute_profile_weights),
    }
    for i in range(options.games):
        players = 3 if i % 5 == 4 else 2
        shape = rng.integers(2, 4 if players == 3 else CAPACITY + 1, players)
        payoffs = rng.normal(size=(players, *shape)).astype(np.float32)
        payoffs = np.round(2 * payoffs) if i % 4 == 2 else payoffs
        if players == 2 and i % 2 == 0:
            payoffs[1] = -payoffs[0]
        for name, x in compare(payoffs, solvers).items():
            apart[name].append(x)
    print("| solver | games | largest difference | allowed |\n|---|---|---|---|")
    for name, of in apart.items():
        print(f"| {name} | {len(of)} | {max(of, default=0):.1e} | {ALLOWED[name]:.0e} |")
    sys.exit(any(max(of, default=0) > ALLOWED[name] for name, of in apart.items()))


if __name__ == "__main__":
    main()
