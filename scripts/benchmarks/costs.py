"""Compare what a step costs with what it uses, for this checkout and an earlier commit, in alternation.

python scripts/benchmarks/costs.py                     this checkout
python scripts/benchmarks/costs.py --before COMMIT     and an earlier commit
python scripts/benchmarks/costs.py --only pool cma_es

pool      exact PSRO on Leduc poker with five policies, by the capacity of the pool
archive   MAP-Elites with 64 children, by the number of cells: a policy in a maze, and the arm, which costs nothing
nsga2     NSGA-II, by the population, with one objective and with two
cma_es    CMA-ES with 2,000 parameters, and pycma's on the same function and population
memory    populations that a step of an evolver holds in addition to its state, from XLA's analysis of the program
copies    peak memory of a training in copies of its state, by the resident memory of the process

Times are milliseconds of a step, the smallest of several calls of ten steps, each process alone. --rounds 3 repeats
each process; the smallest of its times is kept.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from before_after import ROOT, open_commit

STEPS, CALLS = 10, 8
MAX_SECONDS = 30  # of the calls of one measurement


def time_step(workflow: Any, prepare: Callable[[Any], Any] = lambda state: state, steps: int = STEPS) -> float:
    """Return the milliseconds of a step, in calls of several; `prepare` changes the state before every call."""
    import jax

    def run(state: Any, key: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda i, state: workflow.step(state, jax.random.fold_in(key, i))[0], state)

    state, run = jax.jit(workflow.init)(jax.random.key(0)), jax.jit(run, donate_argnums=0)
    best, begun = math.inf, time.perf_counter()
    for call in range(CALLS + 1):
        state = jax.block_until_ready(prepare(state))
        now = time.perf_counter()
        state = jax.block_until_ready(run(state, jax.random.key(call)))
        took = (time.perf_counter() - now) / steps * 1000
        best = min(best, took) if call else best
        if call and time.perf_counter() - begun > MAX_SECONDS:
            break
    return best


def pool(capacity: int) -> float:
    from dataclasses import replace

    import jax.numpy as jnp

    from evorl import PSRO
    from evorl.envs.games import ExtensiveFormGame, Leduc

    game: Any = ExtensiveFormGame(Leduc())
    psro = PSRO(game, capacity=capacity)
    return time_step(psro, lambda state: replace(state, num_policies=jnp.minimum(state.num_policies, 5)), steps=1)


def archive(cells: int, what: str) -> float:
    from evorl import Evolution, MapElites, MLPPolicy, Search
    from evorl.ec import GridArchive, IsoLineEmitter
    from evorl.envs.maze.point_maze import PointMaze
    from evorl.problems import Arm

    grid, emitter = GridArchive(shape=(round(cells**0.5),) * 2), IsoLineEmitter(64)
    if what == "arm":
        return time_step(Search(Arm(), MapElites(grid, emitter)))
    env, policy = PointMaze(max_episode_steps=50), MLPPolicy(hidden=(16,))
    return time_step(Evolution(env, policy, MapElites(grid, emitter, ("position",)), normalization="none"))


def nsga2(population: int, objectives: int) -> float:
    from evorl import Search
    from evorl.ec import NSGA2
    from evorl.problems import ZDT, Sphere

    return time_step(Search(ZDT(1) if objectives == 2 else Sphere(30), NSGA2(population)))


def cma_es(parameters: int) -> float:
    from evorl import CMAES, Search
    from evorl.problems import Sphere

    return time_step(Search(Sphere(parameters), CMAES(4 + int(3 * math.log(parameters)))))


def pycma(parameters: int) -> float:
    import cma
    import numpy as np

    search = cma.CMAEvolutionStrategy(np.ones(parameters), 0.3, {"verbose": -9})
    times = []
    for _ in range(3):
        now = time.perf_counter()
        for _ in range(STEPS):
            asked = search.ask()
            search.tell(asked, [float(x @ x) for x in asked])
        times.append((time.perf_counter() - now) / STEPS * 1000)
    return min(times)


def memory(name: str) -> float:
    import jax

    from evorl import Evolution, Gymnax, MLPPolicy, ec, tree
    from evorl.training.program import Program, make_run_args

    n, env, policy = 2048, Gymnax("Pendulum-v1"), MLPPolicy(hidden=(256, 256))
    workflow = Evolution(env, policy, getattr(ec, name)(n), normalization="none", eval_episodes=n)
    program = Program(workflow, [0], 2, True)
    state = jax.eval_shape(program.init, program.keys, {})
    run = jax.jit(program.run, donate_argnums=0).lower(state, program.keys, *make_run_args(0, 2, False)).compile()
    analysis: Any = run.memory_analysis()
    return analysis.temp_size_in_bytes / (n * tree.nbytes(state.agent.actor.params))


def copies(checkpoints: str) -> float:
    import jax

    from evorl import Budget, Evolution, MapElites, MLPPolicy, fit, tree
    from evorl.ec import GridArchive, IsoLineEmitter
    from evorl.envs.maze.point_maze import PointMaze
    from evorl.training.records.checkpoint import Checkpoints

    def train(side: int) -> tuple[int, int]:
        grid, peak, ended = GridArchive(shape=(side, side)), [0], threading.Event()

        def watch() -> None:
            while not ended.wait(0.003):
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                peak[0] = max(peak[0], pages * os.sysconf("SC_PAGE_SIZE"))

        env, evolver = PointMaze(max_episode_steps=3), MapElites(grid, IsoLineEmitter(8), ("position",))
        workflow = Evolution(env, MLPPolicy(hidden=(256, 256)), evolver, normalization="none", eval_episodes=8)
        thread = threading.Thread(target=watch)
        thread.start()
        with tempfile.TemporaryDirectory() as folder:
            saver = Checkpoints(Path(folder), minutes=1e-3) if checkpoints == "with checkpoints" else None
            fit(workflow, seed=0, budget=Budget(iterations=12), evaluations=4, checkpoints=saver)
            if saver is not None:
                saver.close()
        ended.set()
        thread.join()
        return peak[0], tree.nbytes(jax.eval_shape(workflow.init, jax.random.key(0)))

    small, _ = train(2)
    large, size = train(64)
    return (large - small) / size


FAMILIES: dict[str, tuple[Callable[..., float], list[tuple[Any, ...]]]] = {
    "pool": (pool, [(64,), (192,), (256,)]),
    "archive": (archive, [(n, what) for what in ("maze", "arm") for n in (1_000, 100_000, 1_000_000)]),
    "nsga2": (nsga2, [(n, m) for m in (1, 2) for n in (1000, 4000)]),
    "cma_es": (cma_es, [(2000,)]),
    "pycma": (pycma, [(2000,)]),
    "memory": (memory, [("OpenES",), ("CEM",), ("CSO",)]),
    "copies": (copies, [("without checkpoints",), ("with checkpoints",)]),
}
UNITS = {"memory": "populations", "copies": "copies of the state"}
PARTNERS = {"cma_es": "pycma"}


def measure(root: Path, name: str, given: tuple[Any, ...]) -> float:
    """Measure in a new process with the evorl of a checkout."""
    script = Path(__file__)
    command = [sys.executable, str(script), "--measure", name, json.dumps(given)]
    environment = os.environ | {"PYTHONPATH": str(root)}
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
    return float(found.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="a commit")
    parser.add_argument("--only", nargs="+", choices=[name for name in FAMILIES if name != "pycma"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        name, sizes = given.measure
        print(FAMILIES[name][0](*json.loads(sizes)))
        return
    with ExitStack() as stack:
        roots = {"before": stack.enter_context(open_commit(given.before))} if given.before else {}
        roots |= {"after" if given.before else "this checkout": ROOT}
        print(f"| family | size | {' | '.join(roots)} | unit |\n|{'---|' * (3 + len(roots))}", flush=True)
        for name in given.only or [name for name in FAMILIES if name != "pycma"]:
            for sizes in FAMILIES[name][1]:
                found = dict.fromkeys(roots, math.inf)
                for _ in range(given.rounds):
                    for label, root in roots.items():
                        found[label] = min(found[label], measure(root, name, sizes))
                cells = " | ".join(f"{value:.3g}" for value in found.values())
                size = ", ".join(f"{x:,}" if isinstance(x, int) else x for x in sizes)
                print(f"| {name} | {size} | {cells} | {UNITS.get(name, 'ms')} |", flush=True)
            if partner := PARTNERS.get(name):
                value = measure(ROOT, partner, FAMILIES[partner][1][0])
                print(
                    f"| {partner} | {FAMILIES[partner][1][0][0]:,} | {' | '.join([f'{value:.3g}'] * len(roots))} | ms |"
                )


if __name__ == "__main__":
    main()
