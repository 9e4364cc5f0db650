"""Measure one point of growth.py in this process: time of an iteration, of compilation, and memory."""

import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from evorl.parts import resolve_numbers
from evorl.training.devices import compiler_options, fast_compile_options
from evorl.training.fit import fit
from evorl.training.program import Program, make_run_args
from evorl.training.progress import Budget

Point = dict[str, float]  # "seconds", "compile_seconds" and "bytes"
CALL_SECONDS = 0.2  # of a timed call, if it may have several iterations
TIMED_SECONDS = 4.0  # after which nothing is repeated
LEAST, MOST = 3, 30  # repeats


def repeat(call: Callable[[], Any], most: int = MOST) -> float:
    """Return the shortest of several durations of a call, in seconds."""
    times: list[float] = []
    while len(times) < LEAST or (len(times) < most and sum(times) < TIMED_SECONDS):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begun)
    return min(times)


def count_bytes(compiled: Any) -> float:
    """Return the bytes that a compiled program holds at once: arguments, results that are no arguments, temporaries."""
    found = compiled.memory_analysis()
    kept = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return float(kept + found.temp_size_in_bytes)


def measure_program(
    workflow: Any,
    *,
    chunk: int = 64,
    warmup: int = 2,
    count: int | None = None,
    restart: bool = False,
    prepare: Callable[[Any], Any] = lambda state: state,
) -> Point:
    """Measure the program that a training of a workflow runs, on one device.

    Args:
        workflow: The workflow.
        chunk: Maximum number of iterations of a call.
        warmup: Number of iterations before the measurement.
        count: Number of iterations of a timed call; None for as many as take CALL_SECONDS.
        restart: Whether each timed call starts from a copy of the same state instead of the last state.
        prepare: Function from the state after the warmup to the state from which the measurement starts.
    """
    program, numbers = Program(workflow, [0], chunk, False), resolve_numbers(workflow)
    begun = time.perf_counter()
    traced = program.trace(numbers)
    init = traced.init.lower().compile(fast_compile_options())
    run = traced.run.compile(compiler_options())
    compile_seconds = time.perf_counter() - begun
    state, done = init(program.keys, numbers), 0

    def advance(state: Any, count: int) -> Any:
        nonlocal done
        done += count
        return run(state, program.keys, *make_run_args(done, count, False))[0]

    for _ in range(min(warmup, 1)):
        state = jax.block_until_ready(advance(state, 1))
    if warmup > 1:
        state = jax.block_until_ready(advance(state, warmup - 1))
    state = jax.device_put(prepare(state), traced.shardings)
    if count is None:
        state = jax.block_until_ready(advance(state, 1))
        begun = time.perf_counter()
        state = jax.block_until_ready(advance(state, 1))
        count = max(1, min(chunk, int(CALL_SECONDS / (time.perf_counter() - begun))))
    times: list[float] = []
    while len(times) < LEAST or (len(times) < MOST and sum(times) < TIMED_SECONDS):
        given = jax.block_until_ready(jax.tree.map(jnp.copy, state)) if restart else state
        begun = time.perf_counter()
        after = jax.block_until_ready(advance(given, count))
        times.append(time.perf_counter() - begun)
        state = state if restart else after
    return {"seconds": min(times) / count, "compile_seconds": compile_seconds, "bytes": count_bytes(run)}


def measure_seeds(make: Callable[[], Any], vectorized: bool, seeds: int) -> Point:
    """Measure `fit` with several seeds: the shortest chunk, and the seconds before the first iteration.

    The memory is that of the program of this training, compiled once more.
    """
    chunk = 16
    budget = Budget(iterations=10 * chunk)
    options: Any = {"num_seeds": seeds, "vectorized": vectorized, "chunk": chunk, "evaluations": 1}
    found = fit(make(), budget=budget, devices=1, progress=False, **options)
    times = [row["duration"] for row in found.rows if row["kind"] == "train"]
    compile_seconds = found.rows[-1]["compile_seconds"]
    workflow = make()
    traced = Program(workflow, range(seeds), chunk, vectorized).trace(resolve_numbers(workflow))
    compiled = traced.run.compile(compiler_options())
    return {"seconds": min(times) / chunk, "compile_seconds": compile_seconds, "bytes": count_bytes(compiled)}


def measure_evaluations(make: Callable[[], Any], iterations: int, evaluations: int) -> Point:
    """Measure the seconds of an evaluation during a training, and the peak memory of the training."""
    held = reset_peak()
    budget = Budget(iterations=iterations)
    trained = fit(make(), budget=budget, devices=1, progress=False, evaluations=evaluations)
    rows = [row for row in trained.rows if row["kind"] == "evaluation"]
    during = rows[-2]["evaluation_seconds"] - rows[0]["evaluation_seconds"]  # the last one has more episodes
    found = {"seconds": during / (len(rows) - 2), "compile_seconds": rows[-1]["compile_seconds"]}
    return found | {"bytes": read_peak() - held}


def measure_host(call: Callable[[], Any], warmup: int = 0, most: int = MOST) -> Point:
    """Measure the time of a call, and the peak memory of this process above that before the first call."""
    held = reset_peak()
    for _ in range(warmup):
        call()
    seconds = repeat(call, most)
    return {"seconds": seconds, "compile_seconds": math.nan, "bytes": read_peak() - held}


def reset_peak() -> float:
    """Set the peak memory of this process to its present memory, and return it in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return read_peak()


def read_peak() -> float:
    """Return the peak memory of this process in bytes, since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024.0 * int(line.split()[1])
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
