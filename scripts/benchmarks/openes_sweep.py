"""Time an OpenES iteration on swimmer, as in figure 4 of EvoRL (arXiv:2501.15129, section 5.1.1).

python scripts/benchmarks/openes_sweep.py                            all of it, for a GPU
python scripts/benchmarks/openes_sweep.py --steps 20 --repeats 3     with shorter episodes than 1000 steps

Hidden layers of 256, members, and episodes per fitness vary one at a time around 2, 128 and 1. Noise is drawn, hashed,
or taken from a table. Compilation is measured separately. The result is the mean of the repeats after one warm-up.
"""

import argparse
import statistics
import time

import jax
from peers_timing import compiled, surroundings

from evorl import Brax, Evolution, MLPPolicy, OpenES
from evorl.ec import Noise
from evorl.ec.noise import SOURCES

BASE = {"layers": 2, "members": 128, "episodes": 1}
SWEEP = {"layers": (1, 2, 4, 8), "members": (32, 128, 512, 2048), "episodes": (1, 2, 4, 8)}


def seconds(source: str, layers: int, members: int, episodes: int, steps: int, repeats: int) -> tuple[float, float]:
    """Return the wall seconds of an iteration, and the CPU seconds of compiling it."""
    env = Brax("swimmer", max_episode_steps=steps)
    policy = MLPPolicy(hidden=(256,) * layers)
    workflow = Evolution(env, policy, OpenES(members, noise=Noise(source)), episodes)
    state = jax.jit(workflow.init)(jax.random.key(0))
    step, compile_cpu = compiled(workflow.step, state, jax.random.key(0), donated=(0,))
    times = []
    for i in range(repeats + 2):  # the first takes the random steps, the second warms up
        started = time.perf_counter()
        state, _ = jax.block_until_ready(step(state, jax.random.key(i)))
        times.append(time.perf_counter() - started)
    return statistics.mean(times[2:]), compile_cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="of an episode")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{surroundings(arguments.repeats)}\n")
    print("| hidden layers | members | episodes | noise | seconds | env steps/s | compile CPU s |")
    print("|---|---|---|---|---|---|---|")
    points = [BASE | {name: value} for name, values in SWEEP.items() for value in values]
    for point in [point for i, point in enumerate(points) if point not in points[:i]]:
        for source in SOURCES:
            each, compile_cpu = seconds(source, **point, steps=arguments.steps, repeats=arguments.repeats)
            speed = point["members"] * point["episodes"] * arguments.steps / each
            cells = [*map(str, point.values()), source, f"{each:.3f}", f"{speed:,.0f}", f"{compile_cpu:.1f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
