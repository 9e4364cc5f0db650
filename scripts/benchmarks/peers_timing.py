"""Provide what the benchmarks share: clocks, programs timed in turn, and a description of the machine."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import jax

jax.config.update("jax_enable_compilation_cache", False)  # before anything compiles, since compiling is measured

Times = tuple[float, float]  # wall and CPU seconds
Case = tuple[str, dict[str, "Program"]]  # a name, and the programs that are compared, evorl's first


def clock(function: Callable[..., Any], *args: Any) -> Times:
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - wall, time.process_time() - cpu


def medians(times: Iterable[Times]) -> Times:
    walls, cpus = zip(*times, strict=True)
    return statistics.median(walls), statistics.median(cpus)


def timed(function: Callable[..., Any], *args: Any, repeats: int) -> Times:
    """Return the median wall and CPU seconds of a compiled call."""
    jax.block_until_ready(function(*args))
    return medians([clock(function, *args) for _ in range(repeats)])


def compiled(function: Callable[..., Any], *args: Any, donated: tuple[int, ...] = ()) -> tuple[Any, float]:
    """Return the executable and the CPU seconds of compiling it."""
    cpu = time.process_time()
    executable = jax.jit(function, donate_argnums=donated).lower(*args).compile()
    return executable, time.process_time() - cpu


@dataclass
class Program:
    """A function that is called `calls` times in a row, and does `work` units of work in total.

    With `restart`, the first argument is donated and the function returns the next one. `restart(state)`
    prepares the last of them for another run, untimed.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    work: int
    calls: int = 1
    restart: Callable[[Any], Any] | None = None
    compile_cpu_s: float = 0.0
    times: list[Times] = field(default_factory=list)

    def compile(self) -> None:
        donated = () if self.restart is None else (0,)
        self.function, self.compile_cpu_s = compiled(self.function, *self.args, donated=donated)

    def run(self) -> None:
        if self.restart is None:
            self.times.append(clock(self.function, *self.args))
        else:
            self.args = jax.block_until_ready((self.restart(self.args[0]), *self.args[1:]))
            self.times.append(clock(self._advance))

    def _advance(self) -> Any:
        state, *rest = self.args
        for _ in range(self.calls):
            state = self.function(state, *rest)
        self.args = (state, *rest)
        return state


def in_turn(programs: dict[str, Program], unit: str, repeats: int) -> dict[str, dict[str, float]]:
    """Return the medians of programs that take turns.

    `ratio` is the time per unit of work relative to the first program: how many times as fast the first one
    is.
    """
    for program in programs.values():
        program.compile()
        program.run()
        program.times.clear()
    for _ in range(repeats):
        for program in programs.values():
            program.run()
    rows: dict[str, dict[str, float]] = {}
    first: Times | None = None
    for name, program in programs.items():
        wall, cpu = medians(program.times)
        per_unit = wall / program.work, cpu / program.work
        row = {unit: 1e6 * per_unit[0] if unit == "us" else 1 / per_unit[0]}
        rows[name] = row | {"wall_s": wall, "cpu_s": cpu, "compile_cpu_s": program.compile_cpu_s}
        if first:
            rows[name] |= {"ratio": per_unit[0] / first[0], "ratio_cpu": per_unit[1] / first[1]}
        first = first or per_unit
    return rows


def compare(workload: str, cases: Iterable[Case], unit: str, repeats: int, note: str = "") -> dict[str, Any]:
    """Time the programs of each case in turn, and return the results of the workload as one row."""
    measured = {case: in_turn(programs, unit, repeats) for case, programs in cases}
    return {"workload": workload, "unit": unit, "cases": measured, "note": note, **surroundings(repeats)}


def surroundings(repeats: int) -> dict[str, Any]:
    """Return where and how a row was measured."""
    return {
        "repeats": repeats,
        "device": str(jax.devices()[0]),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "jax": jax.__version__,
        "brax": metadata.version("brax"),
    }
