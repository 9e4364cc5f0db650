"""Write the tables and the picture of the comparison from its rows.

python scripts/comparison/page.py            write docs/comparison.md, README and the pages "Coming from"
python scripts/comparison/page.py --check    list the pages that are out of date, with exit code 1 if there are any

The speed of evorl relative to another library is the geometric mean over rounds of the ratio of work per second, with a
95 % interval by Student's t of its logarithm. The rounds of all sides take turns, so the i-th ones are a pair.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from compare import MISSING, read_rows
from jobs import JOBS, LIBRARIES, Job, Side

from evorl import stats
from evorl.plots.chart import Chart, Table, assign_colors, axis, color_by_group, save_charts

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PICTURE = DOCS / "pictures" / "comparison.png"
BLOCK = re.compile(
    r"(<!-- comparison, (\w+)(?: (\w+))?: made by scripts/comparison/page.py -->\n).*?(<!-- end -->)", re.DOTALL
)
LEAST_SIZES = 3  # of a job in the picture
LEAST_ROUNDS = 3  # of a side in a table, and for a ratio: a stopped job may have fewer, or few that reach the goal
LEAST_CPU_SECONDS = 0.1  # of a round; the CPU time of a process is known to 10 ms


class Ratio(NamedTuple):
    """A ratio of evorl to another library: the geometric mean over rounds, with a 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def from_pairs(cls, ours: Any, theirs: Any) -> "Ratio":
        estimate = stats.MeanEstimate.from_scores(np.log(np.asarray(ours) / np.asarray(theirs)))
        return cls(*(float(np.exp(value)) for value in (estimate.value, *estimate.interval())))

    def __str__(self) -> str:
        mean, low, high = map(shorten, self)
        return f"{mean} [{low}, {high}]"


@dataclass(frozen=True)
class Result:
    """Figures of a side of a job at one size."""

    job: str
    size: int
    side: Side
    figures: dict[str, Any]

    @property
    def works(self) -> np.ndarray:
        """Work of each round, in the unit of the job."""
        return np.array([one["work"] for one in self._count("answers")])

    @property
    def counted(self) -> np.ndarray:
        """Work of each round that speeds count; if the job has a goal, 1 for reaching it and else NaN."""
        job = JOBS[self.job]
        if job.goal is None:
            return self.works
        reached = np.less_equal if job.minimizes else np.greater_equal
        return np.where(reached(self.scores, job.goal), 1.0, np.nan)

    @property
    def speeds(self) -> np.ndarray:
        """Work per second of each round."""
        return self.counted / np.array(self._count("wall"))

    @property
    def cpu_speed(self) -> float | None:
        """The median work per CPU second, or None if rounds are too short to be measured."""
        cpu = np.array(self._count("cpu"))
        return float(np.nanmedian(self.counted / cpu)) if np.median(cpu) >= LEAST_CPU_SECONDS else None

    @property
    def figure(self) -> str:
        """The median speed, or the median of the seconds of rounds that reach the goal."""
        if JOBS[self.job].goal is None:
            return format_number(float(np.median(self.speeds)))
        return f"{format_number(1 / np.nanmedian(self.speeds))} s" if np.isfinite(self.speeds).any() else "never"

    def _count(self, name: str) -> list[Any]:
        """Return the figures of the rounds that count."""
        return self.figures[name][JOBS[self.job].skip :]

    @property
    def scores(self) -> list[float]:
        return [one["score"] for one in self.figures["answers"] if "score" in one]


def read_results() -> list[Result]:
    """Return the results of all jobs that have rows, in the order of the jobs."""
    rows = read_rows()
    return [
        Result(name, size, side, figures)
        for name, job in JOBS.items()
        for size in job.sizes
        if (name, size) in rows
        for side in job.sides
        if (figures := rows[name, size]["sides"].get(side.label))
        if "error" in figures or len(figures["wall"]) >= LEAST_ROUNDS
    ]


def find_own(results: list[Result], result: Result) -> Result | None:
    """Return evorl's first side of the same job and size."""
    same = [one for one in results if (one.job, one.size) == (result.job, result.size)]
    own = [one for one in same if one.side == JOBS[result.job].sides[0] and "error" not in one.figures]
    return own[0] if own else None


def compare_speed(results: list[Result], result: Result) -> Ratio | None:
    """Return evorl's speed relative to that of a side."""
    own = find_own(results, result)
    if own is None or own is result or "error" in result.figures:
        return None
    pairs = np.isfinite(own.speeds) & np.isfinite(result.speeds)
    return Ratio.from_pairs(own.speeds[pairs], result.speeds[pairs]) if pairs.sum() >= LEAST_ROUNDS else None


def compare_cpu(own: Result, result: Result) -> str:
    """Return evorl's work per CPU second relative to that of a side, or nothing if it was not measured."""
    ours, theirs = own.cpu_speed, result.cpu_speed
    return f"{ours / theirs:.2g}" if ours and theirs else ""


def shorten(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_topic(results: list[Result], topic: str) -> Iterator[str]:
    """Yield the jobs of a topic, each with its table."""
    for name, job in JOBS.items():
        rows = [result for result in results if result.job == name]
        if job.topic == topic and rows:
            note = f" {job.note}" if job.note else ""
            yield f"**{name}.** {job.what[:1].upper()}{job.what[1:]}.{note}\n"
            yield from format_job(results, job, rows)
            yield ""


def format_job(results: list[Result], job: Job, rows: list[Result]) -> Iterator[str]:
    sized, scored, to_goal = bool(job.axis), bool(job.score), job.goal is not None
    head = [
        "",
        *[job.axis] * sized,
        *(["goal reached", "time to the goal", f"{job.unit} to the goal"] if to_goal else [f"{job.unit}/s"]),
        "evorl's speed relative to it",
        "by CPU time",
    ]
    head += ["first round, s", "peak memory, MB", "processes", *[job.score] * scored]
    yield f"| {' | '.join(head)} |\n|{'---|' * len(head)}"
    for result in rows:
        rounds = len(result.figures.get("wall", ()))
        seeds = f", {rounds} of {job.rounds} seeds" if scored and 0 < rounds < job.rounds else ""
        cells = [f"{result.side.label}{seeds}", *[f"{result.size:,}"] * sized]
        if "error" in result.figures:
            error = result.figures["error"].replace("|", "/")
            yield f"| {' | '.join([*cells, f'failed: {error}'])} {'| ' * (len(head) - len(cells) - 1)}|"
            continue
        own, speed = find_own(results, result), compare_speed(results, result)
        reached = np.isfinite(result.speeds)
        works = f"{np.median(result.works[reached]):,.0f}" if reached.any() else ""
        cells += [f"{reached.sum()} of {len(reached)}", result.figure, works] if to_goal else [result.figure]
        cells += [str(speed or ""), compare_cpu(own, result) if own and speed else ""]
        cells += [f"{result.figures['first_s']:.1f}", f"{result.figures['peak_mb']:.0f}"]
        cells += [str(result.figures["processes"])]
        cells += [f"{stats.MeanEstimate.from_scores(result.scores):.4g}" if result.scores else ""] * scored
        yield f"| {' | '.join(cells)} |"


def format_library(results: list[Result], library: str) -> Iterator[str]:
    """Yield the table of all jobs that a library does too."""
    rows = []
    for result in results:
        own, speed = find_own(results, result), compare_speed(results, result)
        if result.side.library == library and own and speed:
            job = JOBS[result.job]
            variant = f", {result.side.variant}" if result.side.variant else ""
            size = f"{job.axis} {result.size:,}" if job.axis else ""
            unit = "" if job.goal is not None else f" {job.unit}/s"
            cells = [f"{result.job}{variant}", size, f"{own.figure}{unit}", result.figure, str(speed)]
            cells += [f"{own.figures['peak_mb']:.0f} and {result.figures['peak_mb']:.0f}"]
            rows.append(f"| {' | '.join(cells)} |")
    head = "| job | size | evorl | it | evorl's speed relative to it | memory, MB |\n|---|---|---|---|---|---|"
    yield from [head, *rows] if rows else ["No job has been measured yet."]


def format_summary(results: list[Result]) -> Iterator[str]:
    """Yield for each library the range of evorl's relative speed."""
    yield "| library | jobs | evorl's speed relative to it: minimum, median, maximum | slower in |\n|---|---|---|---|"
    for library, of in LIBRARIES.items():
        speeds = {
            (result.job, result.size, result.side.variant): speed
            for result in results
            if result.side.library == library and result.side.in_summary
            if (speed := compare_speed(results, result))
        }
        if not speeds or library in ("evorl", "bound"):
            continue
        means = sorted(speed.mean for speed in speeds.values())
        slower = sorted(
            f"{job}, {JOBS[job].axis} {size:,}" if JOBS[job].axis else job
            for (job, size, _), speed in speeds.items()
            if speed.high < 1
        )
        cells = [of.title, str(len(speeds)), ", ".join(map(shorten, (means[0], statistics.median(means), means[-1])))]
        yield f"| {' | '.join([*cells, '; '.join(slower)])} |"


def format_bounds(results: list[Result]) -> Iterator[str]:
    """Yield the fraction of its bound that evorl reaches in each job that has one."""
    yield "| job | fraction of the bound | by CPU time |\n|---|---|---|"
    for result in results:
        own, speed = find_own(results, result), compare_speed(results, result)
        if result.side.library == "bound" and own and speed:
            yield f"| {result.job} | {speed} | {compare_cpu(own, result)} |"


def format_missing(results: list[Result]) -> Iterator[str]:
    """Yield the libraries that do not install, and the sides that fail, with their errors."""
    failed = json.loads(MISSING.read_text(encoding="utf-8")) if MISSING.exists() else {}
    found = {(LIBRARIES[name].title, "", error) for name, error in failed.items()}
    found |= {(of.title, "", of.unusable) for of in LIBRARIES.values() if of.unusable}
    found |= {(one.side.label, one.job, one.figures["error"]) for one in results if "error" in one.figures}
    yield "| library | job | error |\n|---|---|---|"
    for title, job, error in sorted(found):
        yield f"| {title} | {job or 'installation'} | {error.replace('|', '/')} |"


def format_setting(results: list[Result]) -> str:
    """Return on what, when, and with which versions the rows were measured."""
    rows = read_rows().values()
    dates = sorted({row["date"] for row in rows})
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    cores = " or ".join(map(str, sorted({row["cores"] for row in rows})))
    machines = sorted({f"{cores} cores, {row['machine']}, CPython {row['python']}" for row in rows})
    loads = [row["load"] for row in rows]
    versions = sorted(
        {f"{name} {of}" for one in results for name, of in one.figures.get("versions", {}).items()}, key=str.lower
    )
    return (
        f"{span}; {'; '.join(machines)}; load of the machine before each job: median {statistics.median(loads):.1f}, "
        f"most {max(loads):.1f}. Versions: {'; '.join(versions)}."
    )


def plot(results: list[Result]) -> list[Chart]:
    """Return a chart of the speed by size, on two logarithmic axes, for each job with several sizes."""
    charts = []
    for name, job in JOBS.items():
        rows = [one for one in results if one.job == name and "error" not in one.figures]
        if len({one.size for one in rows}) < LEAST_SIZES or job.axis == "problem" or job.goal is not None:
            continue
        groups = assign_colors([*dict.fromkeys(one.side.label for one in rows)])
        table = Table(
            {
                "size": [one.size for one in rows],
                "speed": [float(np.median(one.speeds)) for one in rows],
                "group": [one.side.label for one in rows],
            }
        )
        spec = {
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": axis("size", job.axis, scale={"type": "log"}),
                "y": axis("speed", f"{job.unit}/s", scale={"type": "log"}),
                "color": color_by_group(groups),
            },
        }
        charts.append(Chart(spec, {"rows": table}, name, groups=groups))
    return charts


def write_page(page: Path, results: list[Result]) -> str:
    """Return the text of a page with its tables up to date."""

    def make(found: re.Match[str]) -> str:
        kind, name = found[2], found[3] or ""
        makers = {
            "topic": lambda: "\n".join(format_topic(results, name)),
            "library": lambda: "\n".join(format_library(results, name)),
            "summary": lambda: "\n".join(format_summary(results)),
            "bounds": lambda: "\n".join(format_bounds(results)),
            "missing": lambda: "\n".join(format_missing(results)),
            "setting": lambda: format_setting(results),
        }
        return f"{found[1]}{makers[kind]()}\n{found[4]}"

    return BLOCK.sub(make, page.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    results = read_results()
    pages = [ROOT / "README.md", DOCS / "comparison.md", *sorted((DOCS / "coming_from").glob("*.md"))]
    stale = [page for page in pages if write_page(page, results) != page.read_text(encoding="utf-8")]
    for page in stale:
        print(page.relative_to(ROOT))
        if not check:
            page.write_text(write_page(page, results), encoding="utf-8")
    if not check:
        save_charts(plot(results), PICTURE, columns=3, width=240)
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
