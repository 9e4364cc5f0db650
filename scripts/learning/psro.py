"""Compare the meta-solvers of PSRO by NashConv, with exact best responses on Leduc.

python scripts/learning/psro.py [--iterations 60] [--seeds 8]

Seeds break ties between actions of equal value; results are medians over them. Alpha-rank and self-play have 20
iterations at most.
"""

import argparse
import datetime
from typing import Any

import jax
import numpy as np

from evorl import PSRO
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.leduc import Leduc
from evorl.leagues import (
    AlphaRank,
    FictitiousPlay,
    Nash,
    NewestPolicySolver,
    RectifiedNash,
    UniformlyMixedSolver,
    UniformMixture,
)

SOLVERS: dict[str, Any] = {
    "nash": Nash(),
    "nash_mixed": UniformlyMixedSolver(Nash(), 0.2),
    "rectified_nash": RectifiedNash(),
    "fictitious_play": FictitiousPlay(),
    "uniform": UniformMixture(),
    "alpha_rank": AlphaRank(),
    "last": NewestPolicySolver(),
}
SHORT = 20  # iterations of alpha_rank and last
AT = (1, 10, 20, 40, 60)


def nash_conv(solver: Any, iterations: int, seeds: int) -> np.ndarray:
    """Return the NashConv after each iteration, [seeds, iterations]."""
    game: Any = ExtensiveFormGame(Leduc())
    psro = PSRO(game, solver=solver, capacity=iterations + 1)

    @jax.jit
    def run(key: jax.Array) -> jax.Array:
        state = psro.init(key)
        return jax.lax.scan(psro.step, state, jax.random.split(key, iterations))[1]["nash_conv"]

    return np.stack([np.asarray(run(jax.random.key(seed))) for seed in range(seeds)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=8)
    given = parser.parse_args()
    print(
        f"{datetime.date.today()}, {given.seeds} seeds\n\n| | {' | '.join(map(str, AT))} | exploitability 0.5 after |"
    )
    print(f"|{'---|' * (len(AT) + 2)}")
    for name, solver in SOLVERS.items():
        iterations = min(given.iterations, SHORT) if name in ("alpha_rank", "last") else given.iterations
        found = np.median(nash_conv(solver, iterations, given.seeds), 0)
        cells = [f"{found[i - 1]:.2f}" if i <= iterations else "" for i in AT]
        below = np.flatnonzero(found <= 1)
        print(f"| `{name}` | {' | '.join(cells)} | {below[0] + 1 if len(below) else 'never'} |", flush=True)


if __name__ == "__main__":
    main()
