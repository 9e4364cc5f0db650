"""Measure the exploitability of NFSP over env steps on Kuhn and Leduc poker, with all seeds in one program.

python scripts/learning/nfsp.py [--games kuhn leduc] [--seeds 4] [--option agent.inner.workflow.num_updates=8 ...]
python scripts/learning/nfsp.py --smoke    a few steps of each

Options are those of configs/agent/nfsp.yaml, except for reservoirs, which are smaller since a run fills no more.
CPU seconds are those of all seeds together, without compilation. Intervals are over seeds (95 %).
"""

import argparse
import datetime
import time
from typing import Any

import jax
import numpy as np

from evorl import Vmapped
from evorl.stats import MeanEstimate
from evorl.training import runs
from evorl.training.configuration import config

STEPS = {
    "kuhn": (20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000),
    "leduc": (100_000, 500_000, 1_000_000, 2_000_000),
}
ROOM = "agent.workflow.reservoir=400_000"
Curve = tuple[list[np.ndarray], list[float], float]


def curve(game: str, at: tuple[int, ...], seeds: int, options: list[str]) -> Curve:
    """Train all seeds, and record exploitability [seeds] and CPU seconds after each number of env steps.

    The env steps are those of each seed. The last result is the CPU seconds of compiling.
    """
    cfg = config.compose_config(["agent=nfsp", f"env={game}", ROOM, *options])
    workflow, _ = runs.build(cfg)
    one: Any = workflow
    population, every = Vmapped(one, seeds), one.iteration_cost["env_steps"][0]

    def advance(state: Any, key: jax.Array, iterations: jax.Array) -> Any:
        def step(i: jax.Array, state: Any) -> Any:
            return population.step(state, jax.random.fold_in(key, i))[0]

        return jax.lax.fori_loop(0, iterations, step, state)

    state = jax.jit(population.init)(jax.random.key(0))
    key, found, spent, total, done = jax.random.key(1), [], [], 0.0, 0
    begin = time.process_time()
    play = jax.jit(advance, donate_argnums=0).lower(state, key, 0).compile()
    judge = jax.jit(jax.vmap(lambda s: one.evaluate(s, key)["exploitability"])).lower(state).compile()
    compiling = time.process_time() - begin
    for i, steps in enumerate(at):
        begin = time.process_time()
        state = jax.block_until_ready(play(state, jax.random.fold_in(key, i), np.int32(max(steps // every - done, 0))))
        done, total = max(steps // every, done), total + time.process_time() - begin
        found.append(np.asarray(judge(state)))
        spent.append(total)
    return found, spent, compiling


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--option", nargs="*", default=[])
    parser.add_argument("--steps", type=int, nargs="+")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    print(f"{datetime.date.today()}, {args.seeds} seeds\n")
    print(f"| | env steps of each | exploitability [95 %] | CPU s |\n{'|---' * 4}|")
    for game in args.games:
        at = (1_000, 2_000) if args.smoke else tuple(args.steps or STEPS[game])
        found, spent, compiling = curve(game, at, args.seeds, args.option)
        for steps, values, seconds in zip(at, found, spent, strict=True):
            print(f"| {game} | {steps:,} | {MeanEstimate.from_scores(values):.3f} | {seconds:.1f} |", flush=True)
        print(f"| {game} | compiling | | {compiling:.1f} |", flush=True)


if __name__ == "__main__":
    main()
