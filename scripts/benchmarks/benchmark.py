"""Time workflow steps against a lower bound, and compare the speed of evorl with that of other libraries.

python scripts/benchmarks/benchmark.py                    all workloads
python scripts/benchmarks/benchmark.py E4 J1              some of them; J1 is all of J1-ENV-BACKEND
python scripts/benchmarks/benchmark.py --repeats 9 E10 calibrate
python scripts/benchmarks/benchmark.py --wall E1 E8       wall-clock time of the steps alone, for a GPU: one compilation

Compilation is measured separately, without the persistent cache. One warm-up run is followed by the repeats, and the
median counts. The output is one JSON line per workload, then tables.

The workloads E1 to E10 compare evorl with EvoRL: E1 to E3 are OpenES, E4 and E10 CEM-RL, E5 and E6 PBT and PBT-CSO on
PPO, E7 is PPO, E8 TD3 and E9 SAC. Their bound is the sum of their parts, each jitted alone at the same shapes and trip
counts. Their first step is compared with compiling the environment's reset and step once.

J1 (environment steps), J2 (PPO), J4 (updates of TD3 and SAC), J5 (evolution strategies) and J6 (replay buffers) run in
turn with the other libraries. For J2, REJAX_PYTHON names the Python of an environment with rejax 0.1.3 and
gymnax 0.0.9.

calibrate compares this machine with the one where EvoRL was measured. With it, the table of E shows EvoRL's CPU
seconds, scaled by the speed of this machine; that comparison is therefore indirect.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from peers_jax import PEERS
from peers_timing import Times, compiled, surroundings, timed
from workloads import EVORL_CPU_S, KEY, WORKLOADS, compile_parts, jitted

from evorl import tree
from evorl.training.devices import fast_compile_options
from evorl.workflows import PBT


def count_envs(workflow: Any) -> int:
    """Return the number of environments that a workflow steps at once."""
    if isinstance(workflow, PBT):
        return workflow.population.size * count_envs(workflow.population.inner)
    return workflow.vector_env.num_envs


def compile_environment(workflow: Any) -> float:
    """Return the CPU seconds of compiling reset and step once, for as many environments as the workflow steps."""
    env, n = workflow.env, count_envs(workflow)
    keys = jax.random.split(KEY, n)
    reset = jax.vmap(env.reset, (0, None))
    _, reset_cpu = compiled(reset, keys, None)
    states = tree.zeros_like(jax.eval_shape(reset, keys, ())[0])
    actions = jnp.zeros((n, *env.action_space.shape))
    _, step_cpu = compiled(jax.vmap(env.step, (None, 0, 0, None)), KEY, states, actions, None)
    return reset_cpu + step_cpu


def first_step(workflow: Any, numbers: Any) -> float:
    """Return the CPU seconds of the initial state and one step, tracing and compilation included."""
    jax.clear_caches()
    cpu = time.process_time()
    state = jax.jit(workflow.init, compiler_options=fast_compile_options())(KEY, numbers)
    jax.block_until_ready(jitted(workflow.step)(state, KEY))
    return time.process_time() - cpu


@contextmanager
def persistent_cache() -> Iterator[None]:
    """Use a compilation cache on disk that is empty at first."""
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        compilation_cache.reset_cache()  # it was initialized as disabled
        yield
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()


def time_step(workflow: Any, state: Any, iterations: int, repeats: int) -> tuple[Times, Any]:
    """Return the times of `iterations` steps, and their metrics."""

    def run(state: Any) -> Any:
        step = lambda i, loop: workflow.step(loop[0], jax.random.fold_in(KEY, i))  # noqa: E731
        once = workflow.step(state, KEY)
        return jax.lax.fori_loop(1, iterations, step, once) if iterations > 1 else once

    # the step is donated its state, so each repeat gets a copy
    donated = jitted(lambda state: run(state), donate_argnums=0)
    copies = [jax.tree.map(jnp.copy, state) for _ in range(repeats + 1)]
    metrics = donated(jax.tree.map(jnp.copy, state))[1]
    return timed(lambda: donated(copies.pop()), repeats=repeats), metrics


def time_parts(parts: dict, replay: Any, iterations: int, repeats: int) -> dict[str, Times]:
    """Return the times of `iterations` rounds of each part alone."""
    times = {}
    for part, (often, run) in compile_parts(parts, replay).items():
        wall, cpu = timed(run, repeats=repeats)
        times[part] = iterations * often * wall, iterations * often * cpu
    return times


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Measure one workload: its first step, its step, its parts, and the ratio of the step to the sum of the parts."""
    workflow, numbers, iterations, make_parts = WORKLOADS[name]()
    environment = compile_environment(workflow)
    cold = first_step(workflow, numbers)
    with persistent_cache():
        first_step(workflow, numbers)
        warm = first_step(workflow, numbers)
    state, step = jax.jit(workflow.init)(KEY, numbers), jitted(workflow.step)
    state, _ = step(step(state, KEY)[0], KEY)
    (wall, cpu), metrics = time_step(workflow, state, iterations, repeats)
    parts = time_parts(make_parts(workflow, state, metrics), getattr(state, "replay", None), iterations, repeats)
    bound_wall, bound_cpu = (sum(seconds) for seconds in zip(*parts.values(), strict=True))
    return {
        "workload": name,
        "wall_s": wall,
        "cpu_s": cpu,
        "bound_wall_s": bound_wall,
        "bound_cpu_s": bound_cpu,
        "over_bound_wall": wall / bound_wall,
        "over_bound_cpu": cpu / bound_cpu,
        "environment_compile_cpu_s": environment,
        "first_step_cpu_s": cold,
        "first_step_over_environment_cpu_s": cold - environment,
        "first_step_warm_cpu_s": warm,
        "parts_cpu_s": {part: seconds for part, (_, seconds) in parts.items()},
        "env_steps": int(metrics["env_steps"]),
        **surroundings(repeats),
    }


def measure_wall(name: str, repeats: int) -> dict[str, Any]:
    """Measure the wall-clock time of an iteration of one workload of E and of its first step, with a single program."""
    workflow, numbers, iterations, _ = WORKLOADS[name]()

    def run(state: Any, key: Any) -> Any:
        step = lambda i, loop: workflow.step(loop[0], jax.random.fold_in(key, i))  # noqa: E731
        return jax.lax.fori_loop(1, iterations, step, workflow.step(state, key))

    state = jax.jit(workflow.init)(KEY, numbers)
    began = time.perf_counter()
    donated = jitted(run, donate_argnums=0).lower(state, KEY).compile()
    state, _ = jax.block_until_ready(donated(state, KEY))
    first = time.perf_counter() - began
    seconds = []
    for i in range(repeats + 1):
        began = time.perf_counter()
        state, _ = jax.block_until_ready(donated(state, jax.random.fold_in(KEY, i)))
        seconds.append(time.perf_counter() - began)
    wall = statistics.median(seconds[1:])
    return {"workload": name, "ms": 1000 * wall / iterations, "first_step_s": first, **surroundings(repeats)}


def table(columns: list[str], rows: list[list[str]]) -> None:
    print()
    for cells in (columns, ["---"] * len(columns), *rows):
        print(f"| {' | '.join(cells)} |" if cells[0] != "---" else f"|{'|'.join(cells)}|")


def print_steps(rows: list[dict[str, Any]], speed: float | None) -> None:
    columns = {
        "wall s": "wall_s",
        "CPU s": "cpu_s",
        "bound CPU s": "bound_cpu_s",
        "over bound, CPU": "over_bound_cpu",
        "wall": "over_bound_wall",
        "reset + step compile, CPU s": "environment_compile_cpu_s",
        "first step, CPU s": "first_step_cpu_s",
        "more": "first_step_over_environment_cpu_s",
        "from a warm cache": "first_step_warm_cpu_s",
    }
    lines = [[row["workload"], *(f"{row[field]:.2f}" for field in columns.values())] for row in rows]
    indirect = ["EvoRL CPU s, indirect", "over ours, indirect"] if speed else []
    if speed:
        for row, line in zip(rows, lines, strict=True):
            scaled = EVORL_CPU_S.get(row["workload"], 0.0) / speed
            line += [f"{scaled:.2f}", f"{scaled / row['cpu_s']:.2f}"] if scaled else ["", ""]
    table(["workload", *columns, *indirect], lines)


def print_peers(rows: list[dict[str, Any]]) -> None:
    lines = []
    for row in rows:
        for case, programs in row["cases"].items():
            for side, times in programs.items():
                figures = [f"{times[row['unit']]:,.1f} {row['unit']}", f"{times['compile_cpu_s']:.1f}"]
                ratios = [f"{times[name]:.2f}" if name in times else "" for name in ("ratio", "ratio_cpu")]
                lines.append([row["workload"], case, side, *figures, *ratios])
    table(["workload", "case", "program", "median", "compile CPU s", "speed of evorl over it", "by CPU"], lines)
    for row in rows:
        if row["note"]:
            print(f"\n{row['workload']}: {row['note']}")


def print_speed(row: dict[str, Any]) -> None:
    lines = []
    for clock, suffix in (("CPU", ""), ("wall", "_wall")):
        ratios = row[f"to_reference{suffix}"] | {"geometric mean": row[f"speed{suffix}"]}
        lines.append([f"{clock} seconds", *(f"{ratio:.2f}" for ratio in ratios.values())])
    table(["speed against the reference machine", *row["to_reference"], "geometric mean"], lines)


def chosen(names: list[str]) -> list[str]:
    """Return the selected workloads, each once; J1 stands for all of J1."""
    known = [*WORKLOADS, *PEERS]
    unknown = [name for name in names if name not in (*known, "J1")]
    if unknown:
        sys.exit(f"no workload {', '.join(unknown)}; there are {', '.join([*WORKLOADS, 'J1', *PEERS])}")
    return [name for name in known if not names or name in names or (name.startswith("J1-") and "J1" in names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join([*WORKLOADS, 'J1', *PEERS])}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--wall", action="store_true", help="wall-clock time of E1 to E10 only")
    arguments = parser.parse_args()
    if arguments.wall:
        rows = [measure_wall(name, arguments.repeats) for name in chosen(arguments.workloads) if name in WORKLOADS]
        print(*map(json.dumps, rows), sep="\n")
        return table(
            ["workload", "ms per iteration", "first step s"],
            [[row["workload"], f"{row['ms']:.3g}", f"{row['first_step_s']:.1f}"] for row in rows],
        )
    results = {}
    for name in chosen(arguments.workloads):
        results[name] = PEERS[name](arguments.repeats) if name in PEERS else measure(name, arguments.repeats)
        print(json.dumps(results[name]), flush=True)
    steps, peers = ([row for row in results.values() if (row["workload"] in PEERS) is other] for other in (False, True))
    speed = results["calibrate"]["speed"] if "calibrate" in results else None
    if steps:
        print_steps(steps, speed)
    if peers:
        print_peers(peers)
    if speed:
        print_speed(results["calibrate"])


if __name__ == "__main__":
    main()
