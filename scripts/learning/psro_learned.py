"""Measure the exploitability of PSRO with trained responses, and their share of the exact best responses' gains.

python scripts/learning/psro_learned.py [--agents ppo dqn openes] [--env leduc] [--iterations 60] [--seeds 4]
    [--minutes 30] [option=value ...]

Seeds run sequentially in one program. Payoffs are computed from the game's tree. A training ends after --minutes,
not counting compilation. Options are those of `python -m evorl.train agent=psro agent@agent.inner=AGENT`.
"""

import argparse
import datetime
import time
from typing import Any

import jax
import numpy as np

from evorl import stats
from evorl.training import runs
from evorl.training.configuration import config
from evorl.training.devices import compiler_options, enable_compilation_cache

AT = 0.5  # the target exploitability
GREEDY = ("dqn",)  # agents whose greedy policies are stored


def train(agent: str, env: str, iterations: int, seeds: int, minutes: float, options: list[str]) -> None:
    """Train PSRO and print rows of some iterations, and the iteration at which the mean exploitability reached AT."""
    greedy = ["agent.workflow.oracle.explore=false"] * (agent in GREEDY)
    inner = [] if agent == "ppo" else [f"agent@agent.inner={agent}"]
    given = ["agent=psro", *inner, f"env={env}", "agent.workflow.episodes=0", *greedy, *options]
    workflow, _ = runs.build(config.compose_config(given))
    keys = jax.random.split(jax.random.key(0), (2, seeds))
    state = jax.jit(lambda keys: jax.lax.map(lambda key: workflow.init(key), keys))(keys[0])

    def several(state: Any, keys: jax.Array) -> Any:
        return jax.lax.map(lambda given: workflow.step(*given), (state, keys))

    step = jax.jit(several, donate_argnums=0).lower(state, keys[1]).compile(compiler_options())
    began, cpu, steps, below = time.perf_counter(), time.process_time(), 0, None
    reached, since = [], []
    columns = "iteration", "exploitability [95 %]", "reached since", "env steps of each", "minutes", "CPU minutes"
    print(f"\n{agent} on {env}\n\n| {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|", flush=True)
    for i in range(iterations):
        state, metrics = step(state, jax.vmap(jax.random.fold_in, (0, None))(keys[1], i))
        found, spent = np.asarray(metrics["exploitability"]), (time.perf_counter() - began) / 60
        steps += int(np.asarray(metrics["env_steps"]).mean())
        reached.append(np.asarray(metrics["reached"]).mean())
        since.append(reached[-1])
        if below is None and found.mean() <= AT:
            below = i + 1, spent
        done = spent >= minutes or i + 1 == iterations
        if done or i < 2 or (i + 1) % 5 == 0:
            busy = (time.process_time() - cpu) / 60
            row = f"{stats.MeanEstimate.from_scores(found):.2f} | {np.mean(since):.2f}"
            print(f"| {i + 1} | {row} | {steps:,} | {spent:.1f} | {busy:.1f} |", flush=True)
            since = []
        if done:
            break
    came = "not reached" if below is None else f"after {below[0]} iterations, {below[1]:.1f} minutes"
    print(f"\nexploitability {AT}: {came}; of exact best responses' gains {np.mean(reached):.2f} reached", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", default=["ppo", "dqn", "openes"])
    parser.add_argument("--env", default="leduc")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("options", nargs="*", help="of evorl.train")
    given = parser.parse_intermixed_args()
    options = [one for one in (*given.options, *given.agents) if "=" in one]
    agents = [one for one in given.agents if one not in options]
    enable_compilation_cache()
    print(f"{datetime.date.today()}, {given.seeds} seeds, {' '.join(options)}")
    for agent in agents:
        train(agent, given.env, given.iterations, given.seeds, given.minutes, options)


if __name__ == "__main__":
    main()
