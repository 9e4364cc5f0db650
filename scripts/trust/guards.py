"""Guard speed and memory without a clock: count operations and bytes of the compiled programs of small workloads.

python scripts/trust/guards.py [NAME ...]           prints the table, of all workloads or some
python scripts/trust/guards.py --check [NAME ...]   compares it with tests/guards.json; exits with 1 if a figure moved
python scripts/trust/guards.py --write              records tests/guards.json; the commit message says why it moved

programs is the number of programs compiled to build a workload and to run it twice. The other figures are of its main
program, after optimization: operations of HLO; dynamic_loops, while loops without a known trip count; all_gathers,
and gathered_bytes and reduced_bytes, the bytes of the results of all-gathers and all-reduces, wherever they are;
temp_bytes and peak_bytes, of the temporaries and of arguments, results and temporaries together; loop_copies and
loop_copy_bytes, arrays of 4 kB and more that an iteration of a loop copies. modules is the number of modules that an
import loads, import_ratio its CPU time divided by that of `import jax`.

A figure has moved if it changed by more than 5 %, or at all if it was below 20; import_ratio, if it changed by more
than half and by more than 0.05. Programs are compiled for one thread of a CPU, with JAX's default flags whatever the
environment says; each workload runs in its own process. The whole check takes two to three CPU minutes.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hlo import Module

RECORDED = Path(__file__).parents[2] / "tests" / "guards.json"
FIGURES = ("programs", "operations", "dynamic_loops", "all_gathers", "gathered_bytes", "reduced_bytes", "temp_bytes",
           "peak_bytes", "loop_copies", "loop_copy_bytes", "modules", "import_ratio")  # fmt: skip
TOLERANCE, EXACT_BELOW = 0.05, 20
RATIO_TOLERANCE, RATIO_NOISE = 0.5, 0.05  # for import_ratio, a ratio of times
IMPORTS = {
    "import evorl": "import evorl",
    "import CEMRL": "from evorl import CEMRL",
    "import fit": "from evorl import fit",
}
IMPORT_ROUNDS = 3
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "PJRT_NPROC": "1",  # programs depend on the number of threads
    "OPENBLAS_NUM_THREADS": "1",
}
Table = dict[str, dict[str, float]]


def use_default_flags() -> None:
    """Replace the options of JAX and XLA in the environment; call it before JAX is imported."""
    for name in [name for name in os.environ if name.startswith(("JAX_", "XLA_"))]:
        del os.environ[name]
    os.environ.update(ENVIRONMENT)


def program_figures(compiled: Any) -> dict[str, float]:
    """Return the figures of a compiled program."""
    module, memory = Module.parse(compiled.as_text()), compiled.memory_analysis()
    copies = module.loop_copies()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "operations": len(module.instructions),
        "dynamic_loops": module.dynamic_loops,
        "all_gathers": module.count("all-gather"),
        "gathered_bytes": module.result_bytes("all-gather"),
        "reduced_bytes": module.result_bytes("all-reduce"),
        "temp_bytes": memory.temp_size_in_bytes,
        "peak_bytes": held + memory.temp_size_in_bytes,
        "loop_copies": len(copies),
        "loop_copy_bytes": sum(copies),
    }


def compilations() -> list[float]:
    """Return a list to which JAX appends the seconds of each program that it compiles from now on."""
    import jax

    seconds: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return seconds


def workload_figures(name: str) -> dict[str, float]:
    """Build and run a workload in this process, in which JAX has not started, and return its figures."""
    from guard_workloads import DEVICES, SPREAD, WORKLOADS

    from evorl.training.devices import set_host_devices

    set_host_devices(DEVICES if name in SPREAD else 1)
    programs = compilations()
    compiled = WORKLOADS[name]()
    return {"programs": len(programs)} | program_figures(compiled)


def imported(statement: str) -> tuple[float, int]:
    """Run an import in its own process, and return its CPU seconds and the number of modules it loaded."""
    code = f"import sys, time; begun = time.process_time(); {statement}"
    code += "; print(time.process_time() - begun, len(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    seconds, modules = found.stdout.split()[-2:]
    return float(seconds), int(modules)


def import_figures(names: list[str]) -> Table:
    """Return the figures of imports, in alternation with `import jax`; the fastest round counts."""
    statements = {"jax": "import jax"} | {name: IMPORTS[name] for name in names}
    rounds = [{name: imported(one) for name, one in statements.items()} for _ in range(IMPORT_ROUNDS)]
    least = {name: min(found[name] for found in rounds) for name in statements}
    return {
        name: {"modules": least[name][1], "import_ratio": round(least[name][0] / least["jax"][0], 3)} for name in names
    }


def measured(names: list[str]) -> Table:
    """Return the table of the workloads and imports with these names, or of all."""
    from guard_workloads import WORKLOADS  # imported once, here; each workload then has a fork of this process

    unknown = [name for name in names if name not in (*WORKLOADS, *IMPORTS)]
    if unknown:
        sys.exit(f"no workload {', '.join(unknown)}; there are {', '.join([*WORKLOADS, *IMPORTS])}")
    chosen = names or [*WORKLOADS, *IMPORTS]
    imports = [name for name in chosen if name in IMPORTS]
    table = import_figures(imports) if imports else {}
    for name in [name for name in chosen if name in WORKLOADS]:
        with ProcessPoolExecutor(1, get_context("fork")) as process:
            table[name] = process.submit(workload_figures, name).result()
    return table


def close(figure: str, old: float, new: float) -> bool:
    """Return whether a figure is within its tolerance of the recorded one."""
    if figure == "import_ratio":
        return abs(new - old) <= max(RATIO_TOLERANCE * old, RATIO_NOISE)
    return abs(new - old) <= (TOLERANCE * old if old >= EXACT_BELOW else 0)


def moved(old: Table, new: Table) -> list[str]:
    """Return a line for each figure that is beyond its tolerance, or is only in one of the tables."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, {}), new.get(name, {})
        for figure in sorted(before.keys() | after.keys()):
            a, b = before.get(figure), after.get(figure)
            if a is None or b is None or not close(figure, a, b):
                lines.append(f"{name}: {figure} {a} -> {b}")
    return lines


def print_table(table: Table) -> None:
    """Print a table as Markdown."""
    print(f"| workload | {' | '.join(FIGURES)} |\n|---{'|---:' * len(FIGURES)}|")
    for name, figures in table.items():
        print(f"| {name} | {' | '.join(str(figures.get(figure, '')) for figure in FIGURES)} |")


def write(table: Table) -> None:
    """Record a table, one line per workload."""
    lines = [f"{json.dumps(name)}: {json.dumps(figures, sort_keys=True)}" for name, figures in sorted(table.items())]
    text = f'{{"jax": "{metadata.version("jax")}", "workloads": {{\n' + ",\n".join(lines) + "\n}}\n"
    RECORDED.write_text(text, encoding="utf-8")


def check(names: list[str]) -> int:
    """Compare the recorded table with that of this checkout, and return the exit status."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    if recorded["jax"] != metadata.version("jax"):
        print(f"not compared: {RECORDED.name} is of jax {recorded['jax']}, this is {metadata.version('jax')}")
        return 0
    old = recorded["workloads"]
    lines = moved({name: old[name] for name in names if name in old} if names else old, measured(names))
    print("\n".join(lines) or "no figure moved")
    return int(bool(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a workload; by default all")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with tests/guards.json")
    what.add_argument("--write", action="store_true", help="record tests/guards.json")
    given = parser.parse_args()
    if given.write and given.names:
        parser.error("--write records all workloads; leave the names out")
    use_default_flags()
    if given.check:
        sys.exit(check(given.names))
    table = measured(given.names)
    print_table(table)
    if given.write:
        write(table)


if __name__ == "__main__":
    main()
