"""Write the results of docs/howto/gpu.md from the rows of `gpu.py`.

python scripts/gpu_page.py OUT              print the tables
python scripts/gpu_page.py OUT --write      copy the rows to docs/rows/gpu.jsonl and write the tables into the page
python scripts/gpu_page.py --check          exit with 1 if the page does not have the tables of docs/rows/gpu.jsonl
"""

import argparse
import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from gpu import CPU, LIMITS
from gpu_jobs import PEERS
from json_rows import Row, read_rows

ROOT = Path(__file__).parents[1]
PAGE, ROWS = ROOT / "docs" / "howto" / "gpu.md", ROOT / "docs" / "rows" / "gpu.jsonl"
BLOCK = re.compile(r"(<!-- rows: made by scripts/gpu_page.py -->\n).*?(<!-- end -->)", re.DOTALL)
COUNTERS = ("env_steps", "episodes", "gradient_steps")
LOSS_TOLERANCE = 1e-3  # of the first losses on the GPU and on the CPU, relative
BARS: tuple[tuple[str, str, str, float], ...] = (  # aim, job, job that it is divided by ("" for none), least ratio
    ("PPO on ant at least as fast as Brax's", "S2 PPO ant/spring", "S2 Brax PPO ant/spring", 1.0),
    ("PPO on CheetahRun at least as fast as Brax's", "S2 PPO CheetahRun", "S2 Brax PPO CheetahRun", 1.0),
    ("SAC on ant at least as fast as Brax's", "S2 SAC ant/spring", "S2 Brax SAC ant/spring", 1.0),
    ("SAC on CheetahRun at least as fast as Brax's", "S2 SAC CheetahRun", "S2 Brax SAC CheetahRun", 1.0),
    ("PBT of 64 members at least 8 times the throughput of one", "S3 PBT of 64", "S3 PBT of 1", 8.0),
    ("low rank at 2^20 members at least 0.4 of one policy", "S4 low_rank 1048576", "S4 one policy 1048576", 0.4),
    ("mazes with resets at least 100M steps/s", "S5 maze steps, with resets", "", 100e6),
)


def compare_trainings(ours: list[Row], theirs: list[Row]) -> str:
    """Say whether the rows of a training on a GPU agree with those on a CPU.

    All counters must be equal, the losses of the first row within LOSS_TOLERANCE, and all later ones finite.
    """
    if not ours or not theirs:
        return "no rows"
    counters, others = ([[row.get(name) for name in COUNTERS] for row in rows] for rows in (ours, theirs))
    if counters != others:
        return "counters differ"
    first, other = ours[0], theirs[0]
    losses = [name for name in first if name.endswith("loss")]
    wide = [name for name in losses if not math.isclose(first[name], other[name], rel_tol=LOSS_TOLERANCE, abs_tol=1e-6)]
    infinite = [name for row in ours for name in row if name.endswith("loss") and not math.isfinite(row[name])]
    return f"first {wide[0]} differs" if wide else f"{infinite[0]} is not finite" if infinite else "equal"


def format_families(rows: dict[str, Row]) -> Iterator[str]:
    """Yield the table of the trainings of S1."""
    jobs = [job for job in rows if job.startswith("S1 ") and not job.endswith(CPU)]
    if not jobs:
        return
    yield "| family | exit code | seconds, with compilation | compared with the CPU |\n|---|---|---|---|"
    for job in jobs:
        row, other = rows[job], rows.get(job + CPU)
        told = "not compared" if other is None else compare_trainings(row["rows"], other["rows"])
        yield f"| {job[3:]} | {row['codes'][0]} | {row['seconds']:.0f} | {told} |"


def format_twins(row: Row | None) -> Iterator[str]:
    """Say whether two processes with the same seed have reported the same."""
    if row is not None and not any(row["codes"]):
        half = len(row["rows"]) // 2
        first, second = (
            [one | {"compile_seconds": 0} for one in some] for some in (row["rows"][:half], row["rows"][half:])
        )
        told = "equal" if first == second else "different"
        yield f"Two processes on one device, with the same seed and `deterministic=true`: {told} returns and losses."


def format_speeds(rows: dict[str, Row]) -> Iterator[str]:
    """Yield the table of the timed jobs."""
    jobs = [job for job, row in rows.items() if "ms" in row and not job.startswith("S9 ")]
    if not jobs:
        return
    yield "| job | ms per iteration | env steps/s | compilation, s | peak memory, MB |\n|---|---|---|---|---|"
    for job in jobs:
        row = rows[job]
        numbers = f"{row['ms']:,.3g} | {row['env_steps_per_s']:,.3g} | {row['compile_s']:.0f} | {row['peak_mb']:,.0f}"
        yield f"| {job} | {numbers} |"


def format_peers(rows: dict[str, Row]) -> Iterator[str]:
    """Yield the table of the jobs that another library did too."""
    lines = []
    for job, (*_, libraries) in PEERS.items():
        speeds = [rows.get(f"S9 {job}: {library}", {}).get("env_steps_per_s", 0.0) for library in libraries]
        if all(speeds):
            lines.append(
                f"| {job} | {libraries[1]} | {speeds[0]:,.3g} | {speeds[1]:,.3g} | {speeds[0] / speeds[1]:.2g} |"
            )
    if lines:
        yield "| job | other library | evorl, work per second | other library | ratio |\n|---|---|---|---|---|"
        yield from lines


def format_bars(rows: dict[str, Row]) -> Iterator[str]:
    """Yield the table of the aims, each with its measurement, or open."""
    yield "| aim | measured | |\n|---|---|---|"
    for aim, job, base, least in BARS:
        speed, other = (rows.get(name, {}).get("env_steps_per_s") for name in (job, base))
        if speed is None or (base and other is None):
            yield f"| {aim} | open | |"
            continue
        value = speed if other is None else speed / other
        yield f"| {aim} | {value:,.3g} | {'reached' if value >= least else 'missed'} |"


def format_page(rows: dict[str, Row]) -> str:
    """Return the tables as Markdown, with the conditions of the run."""
    limits = rows.get(LIMITS, {})
    parts = ["\n".join(format_bars(rows))]
    if "device" in limits:
        names = ("device", "devices", "cores", "jax", "brax", "evorl", "python", "date")
        parts.insert(0, "Conditions: " + ", ".join(f"{name} {limits[name]}" for name in names if name in limits) + ".")
        ceilings = ("tflops_default", "tflops_highest", "error_default", "error_highest", "copy_gbs")
        parts.append("Limits of the device: " + ", ".join(f"{name} {limits[name]:.3g}" for name in ceilings) + ".")
    parts += [
        "\n".join(format_speeds(rows)),
        "\n".join(format_peers(rows)),
        *format_twins(rows.get("S7 two processes")),
    ]
    parts += ["\n".join(format_families(rows))]
    failed = [f"- {job}: {row['error'].strip().splitlines()[-1:]}" for job, row in rows.items() if "error" in row]
    parts += ["\n".join(["Failed:", "", *failed])] if failed else []
    return "\n\n".join(filter(None, parts)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if (args.out is None) != args.check:
        parser.error("give a folder, or --check")
    source = ROWS if args.out is None else args.out / "rows.jsonl"
    text = format_page({row["job"]: row for row in read_rows(source, "job")})
    if args.out is not None and not args.write:
        print(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    after = BLOCK.sub(lambda found: found[1] + text + found[2], page)
    if args.check:
        sys.exit(f"{PAGE.name} does not have the tables of {ROWS.name}" if after != page else 0)
    if source.exists():
        shutil.copy(source, ROWS)
    PAGE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
