"""Grow each family by ten and by a hundred, and print how time, compilation and memory follow its size.

python scripts/benchmarks/growth.py --out growth.jsonl                   all families, about half an hour on two cores
python scripts/benchmarks/growth.py --out growth.jsonl --only pool levels
python scripts/benchmarks/growth.py --out growth.jsonl --table           prints the table of the rows that there are
python scripts/benchmarks/growth.py --list                               prints the names of the families

Each point runs in a process of its own, without the compilation cache, and is appended to --out as a JSON line. Points
that are there already are not measured again; one that failed is. The machine may do other work: with --rounds 3, every
point is measured in three processes, and the shortest times count.

A time is that of one iteration on one device: the program of a training with donated state, several iterations a call,
the minimum of several calls. The compile time includes tracing, and the programs of the initial state and of an
evaluation. The memory is that of the compiled program: arguments, temporaries, and results that are no arguments.
Families that run on the host have the growth of the process's resident memory instead.

An exponent is the slope of a straight line through the logarithms of the three points: 1 if a quantity is proportional
to the size, 0 if it does not depend on it. An exponent of time is bold if it is above the expected one: 1, or 0 if the
size is a capacity.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
LIMIT = 300  # seconds of a point
COLUMNS = "grows", "sizes", "ms per iteration", "exponent of time", "MB", "exponent of memory", "compile s"
TOLERANCE = 0.1  # of an exponent of time, above the expected one


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of log(value) against log(size) by least squares; NaN if a value is not positive and finite."""
    if len(sizes) < 2 or not all(math.isfinite(value) and value > 0 for value in values):
        return math.nan
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    square = sum((one - middle_x) ** 2 for one in x)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / square


def format_number(value: float) -> str:
    """Return a number with two digits, or with all its digits before the point; a dash for NaN."""
    if not math.isfinite(value):
        return "-"
    digits = max(0, 1 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{digits}f}"


def read_points(path: Path) -> dict[tuple[str, int], list[Row]]:
    """Return the rows of a file by family and size, in their order; a line that was cut off is skipped."""
    found: dict[tuple[str, int], list[Row]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found.setdefault((row["family"], row["size"]), []).append(row)
    return found


def merge_rounds(rows: Sequence[Row]) -> Row:
    """Return the last row of a point with the shortest times of all rounds; the last error if all have failed."""
    whole = [row for row in rows if "error" not in row]
    shortest = {name: min(row[name] for row in whole) for name in ("seconds", "compile_seconds") if whole}
    return {**(whole or rows)[-1], **shortest}


def append_row(path: Path, row: Row) -> None:
    """Append a row to a file, and wait until it is on the disk."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def format_row(grows: str, points: Sequence[Row]) -> str:
    """Return the row of the table of a family, from its points in the order of their sizes."""
    whole = [point for point in points if "error" not in point]
    sizes = [point["size"] for point in whole]
    seconds, memory = ([point[name] for point in whole] for name in ("seconds", "bytes"))
    compiled = [point["compile_seconds"] for point in whole]
    ends = (compiled[0], compiled[-1]) if whole and math.isfinite(compiled[0]) else ()
    cells = [
        grows,
        ", ".join(f"{point['size']:,}" for point in points),
        ", ".join(format_number(1e3 * x) for x in seconds),
        format_exponent(fit_exponent(sizes, seconds), points[0].get("expected", math.inf)),
        ", ".join(format_number(x / 1e6) for x in memory),
        format_exponent(fit_exponent(sizes, memory)),
        ", ".join(f"{x:.1f}" for x in ends) or "-",
    ]
    return f"| {' | '.join(cells)} |"


def format_exponent(value: float, expected: float = math.inf) -> str:
    """Return an exponent with two digits after the point, in bold if it is above the expected one."""
    text = "-" if math.isnan(value) else f"{round(value, 2) + 0.0:.2f}"  # + 0.0 removes the sign of a zero
    return f"**{text}**" if value > expected + TOLERANCE else text


def print_table(points: dict[tuple[str, int], list[Row]], names: Sequence[str]) -> None:
    """Print the table of all families that have points."""
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in names:
        rows = [merge_rounds(rows) for (family, _), rows in points.items() if family == name]
        if rows:
            rows.sort(key=lambda row: row["size"])
            print(format_row(f"{rows[0]['grows']} ({rows[0]['fixed']})", rows), flush=True)


def measure(name: str, size: int) -> Row:
    """Return the row of a point, measured in this process."""
    import jax
    from growth_families import FAMILIES

    family = FAMILIES[name]
    described = {"family": name, "size": size, "grows": family.grows, "fixed": family.fixed}
    versions = {"jax": jax.__version__, "python": sys.version.split()[0], "time": time.strftime("%Y-%m-%d %H:%M")}
    return described | {"expected": family.expected} | family.measure(size) | versions


def measure_in_process(name: str, size: int, family: Any) -> Row:
    """Return the row of a point, measured in a new process; a row with an error if it fails."""
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__)), "--one", name, str(size)]
    described = {"family": name, "size": size, "grows": family.grows, "fixed": family.fixed}
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return described | {"error": f"took more than {LIMIT} s"}
    if ran.returncode:
        return described | {"error": (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]}
    return json.loads(ran.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("growth.jsonl"))
    parser.add_argument("--rounds", type=int, default=1, help="processes of each point; the shortest times count")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], int(given.one[1]))))
        return
    from growth_families import FAMILIES

    names = given.only or list(FAMILIES)
    if unknown := set(names) - set(FAMILIES):
        parser.error(f"--only: no family {', '.join(sorted(unknown))}; the families are {', '.join(FAMILIES)}")
    if given.list:
        print("\n".join(f"{name}: {FAMILIES[name].grows} ({FAMILIES[name].fixed})" for name in names))
        return
    # small sizes first, so that a mistake shows early
    wanted = [(name, size) for i in range(3) for name in names for size in FAMILIES[name].sizes[i : i + 1]]
    for name, size in wanted * given.rounds if not given.table else ():
        rows = read_points(given.out).get((name, size), ())
        if sum("error" not in row for row in rows) < given.rounds:
            begun = time.perf_counter()
            row = measure_in_process(name, size, FAMILIES[name])
            append_row(given.out, row)
            result = row.get("error") or f"{1e3 * row['seconds']:.3f} ms"
            print(f"{name} {size}: {result}, {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    print_table(read_points(given.out), names)


if __name__ == "__main__":
    main()
