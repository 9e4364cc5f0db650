"""Run the same jobs with evorl and with other libraries, and record the figures.

python scripts/comparison/compare.py --install          install all libraries, and record those that do not install
python scripts/comparison/compare.py                    all jobs that have no row yet
python scripts/comparison/compare.py --minutes 30       no round is started after 30 minutes; run it again to continue
python scripts/comparison/compare.py --only "PPO on CartPole" --peers sb3 --rows FILE
python scripts/comparison/page.py                       the page and the tables from the rows

Each library is installed from the package index into a virtual environment of its own, below ENVIRONMENTS, with the
CPython that runs this script. Each side of a job is a process that waits while the other sides run. Round 0, the first
round with set-up and compilation, is timed separately. Then the sides take turns, round by round. Wall-clock time, CPU
time of all processes of a side, and their memory are measured from outside, in the same way for all libraries. A row of
ROWS is one job at one size; rows that exist are not measured again unless `--only` names their job, and the last
complete row of a job and size counts. If each round is a seed, a job that is stopped keeps its finished rounds, and is
continued with the next one, by the same versions on the same kind of machine. Run it on an otherwise idle machine.
scripts/gpu.py has the sizes for a GPU.
"""

import argparse
import datetime
import json
import math
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from jobs import JOBS, LIBRARIES, Job, Side
from side import ANSWER

sys.path.append(str(Path(__file__).parents[1]))
import json_rows
from json_rows import Row

from evorl.machine import count_cores

HERE = Path(__file__).parent
ROWS = HERE.parents[1] / "docs" / "rows" / "comparison.jsonl"
MISSING = ROWS.with_name("comparison_missing.json")
ENVIRONMENTS = Path(tempfile.gettempdir()) / "evorl_comparison"
ENVIRONMENT = {  # variables of the sides; the last line of a whole traceback is the error
    "PYTHONPATH": os.pathsep.join(str(path) for path in (HERE, HERE.parent, HERE.parent / "benchmarks")),
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "JAX_TRACEBACK_FILTERING": "off",
}
PER_ROUND = "wall", "cpu", "answers"  # figures of a side that have a value for each round
ROUND_SECONDS = 3600  # after which a side that does not answer has failed
SAMPLE_SECONDS = 0.5  # least time between two looks at memory
SAMPLE_SHARE = 0.02  # largest share of a core that they take


def install(name: str) -> Path:
    """Return the Python of a library's environment, which is made if it does not exist.

    Raises:
        RuntimeError: The library does not install; the message is the last error of pip.
    """
    if not LIBRARIES[name].requirements:
        return Path(sys.executable)
    folder = ENVIRONMENTS / name
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *LIBRARIES[name].requirements]
        pip = subprocess.run(command, capture_output=True, text=True, check=False)
        if pip.returncode:
            errors = [line.strip() for line in pip.stderr.splitlines() if "Error" in line or "ERROR" in line]
            raise RuntimeError(errors[-1] if errors else "pip failed")
        done.touch()
    return python


@dataclass
class Process:
    """A side of a job that runs, and what was measured of it."""

    python: Path
    job: Job
    side: Side
    size: int
    log: Any
    figures: Row = field(default_factory=dict)

    def __enter__(self) -> "Process":
        self._process = subprocess.Popen(
            [self.python, HERE / "sides" / f"{self.job.topic}_{self.side.library}.py", self.side.job, str(self.size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=tempfile.gettempdir(),
            env=os.environ | ENVIRONMENT | ({"XLA_FLAGS": self.side.flags} if self.side.flags else {}),
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def start(self) -> None:
        """Wait until the side has imported its library."""
        self.figures = {"peak_mb": 0.0, "processes": 0, "wall": [], "cpu": [], "answers": [], **self._read()}

    def run(self, i: int) -> None:
        """Run a round and record its figures."""
        assert self._process.stdin is not None
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,))
        watch.start()
        cpu, wall = self._cpu_seconds(), time.perf_counter()
        try:
            with suppress(BrokenPipeError):  # of a side that has ended, whose error is read next
                self._process.stdin.write(f"{i}\n")
                self._process.stdin.flush()
            answer = self._read()
            wall, cpu = time.perf_counter() - wall, self._cpu_seconds() - cpu
        finally:
            over.set()
            watch.join()
        if i == 0:
            self.figures |= {"first_s": wall, "first_cpu_s": cpu, "first": answer}
        else:
            for name, value in (("wall", wall), ("cpu", cpu), ("answers", answer)):
                self.figures[name].append(value)

    def _read(self) -> Row:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):  # libraries print other lines
                return json.loads(line.removeprefix(ANSWER))
        self._process.wait()
        self.log.seek(0)
        said = self.log.read().strip().splitlines()
        errors = [line for line in said if re.match(r"[\w.]+(Error|Exception)\b", line)]
        raise RuntimeError([f"ended with exit code {self._process.returncode}", *said[-1:], *errors[-1:]][-1])

    def _kill(self) -> None:
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _tree(self) -> list[psutil.Process]:
        try:
            top = psutil.Process(self._process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.Error:
            return []

    def _cpu_seconds(self) -> float:
        """Return the CPU seconds of the processes and of those that they have waited for."""
        total = 0.0
        for process in self._tree():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system + times.children_user + times.children_system
        return total

    def _watch(self, over: threading.Event) -> None:
        end = time.monotonic() + ROUND_SECONDS
        while True:
            started, tree, total = time.perf_counter(), self._tree(), 0
            if time.monotonic() > end:
                self._kill()
            for process in tree:
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.figures["peak_mb"] = max(self.figures["peak_mb"], total / 1e6)
            self.figures["processes"] = max(self.figures["processes"], len(tree))
            if over.wait(max(SAMPLE_SECONDS, (time.perf_counter() - started) / SAMPLE_SHARE)):
                return


def install_all(names: Sequence[str]) -> None:
    """Install libraries and record the errors of those that do not install."""
    missing = json.loads(MISSING.read_text(encoding="utf-8")) if MISSING.exists() else {}
    for name in names:
        missing.pop(name, None)
        try:
            install(name)
        except RuntimeError as error:
            missing[name] = str(error)
    MISSING.write_text(json.dumps(missing, indent=1) + "\n", encoding="utf-8")


def measure(job: Job, size: int, sides: Sequence[Side], rounds: int, row: Row, end: float = math.inf) -> None:
    """Run one job at one size, all sides in turn.

    Args:
        job: Job.
        size: Size of the job.
        sides: Sides that run.
        rounds: Number of the last round.
        row: Row that receives the figures, also if the job is interrupted. Rounds that it has are not run again.
        end: Time of `time.monotonic` after which no round is started.
    """
    before = row.get("sides", {})
    before = {} if any("error" in figures for figures in before.values()) else before
    row |= {**describe_machine(), "load": os.getloadavg()[0], "sides": {}}
    running: dict[str, Process] = {}
    try:
        with ExitStack() as stack:
            for side in sides:
                log = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
                try:
                    process = stack.enter_context(Process(install(side.library), job, side, size, log))
                    process.start()
                    process.run(0)
                    running[side.label] = process
                except (RuntimeError, ValueError) as error:
                    row["sides"][side.label] = {"error": str(error)[:300]}
            if any(before.get(label, {}).get("versions") != one.figures["versions"] for label, one in running.items()):
                before = {}
            for i in range(count_rounds(before) + 1, rounds + 1):
                if time.monotonic() > end:
                    break
                for label, process in [*running.items()]:
                    try:
                        process.run(i)
                    except (RuntimeError, ValueError) as error:
                        row["sides"][label] = {"error": str(error)[:300]}
                        del running[label]
    finally:
        found = {label: process.figures for label, process in running.items()}
        whole = count_rounds(found)
        for label, figures in found.items():
            for name in PER_ROUND:
                figures[name] = before.get(label, {}).get(name, []) + figures[name][:whole]
            figures["peak_mb"] = max(figures["peak_mb"], before.get(label, {}).get("peak_mb", 0))
        found |= row["sides"]
        row["sides"] = {side.label: found[side.label] for side in sides if side.label in found}


def describe_machine() -> Row:
    """Return the date and what a continued job must have in common with its first rounds."""
    return {"date": datetime.date.today().isoformat()} | {
        "cores": count_cores(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def count_rounds(sides: Row) -> int:
    """Return the number of rounds that all sides without an error have."""
    return min((len(figures["wall"]) for figures in sides.values() if "wall" in figures), default=0)


def is_complete(row: Row, sides: Sequence[Side], rounds: int) -> bool:
    """Return whether each side has an error or all rounds."""
    found = [row["sides"].get(side.label, {}) for side in sides]
    return all("error" in figures or len(figures.get("wall", ())) >= rounds for figures in found)


def read_rows(path: Path = ROWS) -> dict[tuple[str, int], Row]:
    """Return the last complete row of each job and size, or the last one if no row is complete."""
    rows: dict[tuple[str, int], Row] = {}
    for row in json_rows.read_rows(path, "job", "size", "sides"):
        job, key = JOBS.get(row["job"]), (row["job"], row["size"])
        if (
            job
            and row.get("version", 0) == job.version
            and (
                key not in rows
                or is_complete(row, job.sides, job.rounds)
                or not is_complete(rows[key], job.sides, job.rounds)
            )
        ):
            rows[key] = row
    return rows


def choose(
    only: Sequence[str], peers: Sequence[str], path: Path, rounds: int
) -> Iterator[tuple[str, int, list[Side], Row]]:
    """Yield the jobs and sizes to run, with their sides and the row of their first rounds, if they were stopped."""
    rows, machine = read_rows(path), describe_machine()
    for name, job in JOBS.items():
        sides = [side for side in job.sides if not peers or side.library in ("evorl", *peers)]
        if (only and name not in only) or (peers and all(side.library == "evorl" for side in sides)):
            continue
        for size in job.sizes:
            row = rows.get((name, size), {})
            is_done = bool(row) and is_complete(row, sides, rounds or job.rounds)
            if only or not is_done:
                same = row and not is_done and all(row[key] == value for key, value in machine.items() if key != "date")
                yield name, size, sides, row if same and job.score else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=(), metavar="JOB", choices=JOBS)
    parser.add_argument("--peers", nargs="+", default=(), metavar="LIBRARY", choices=LIBRARIES)
    parser.add_argument("--minutes", type=float, default=math.inf, help="when to start no further round")
    parser.add_argument("--rounds", type=int, default=0, help="timed rounds, to try a job quickly")
    parser.add_argument("--rows", type=Path, default=ROWS, help="file of the rows")
    parser.add_argument("--install", action="store_true", help="install the libraries, without jobs")
    given = parser.parse_args()
    if (given.peers or given.rounds) and not given.install and given.rows == ROWS:
        parser.error("--peers and --rounds need --rows FILE: rows of the page have all sides and rounds")
    if given.install:
        install_all(given.peers or [*LIBRARIES])
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the sides end too
    end = time.monotonic() + 60 * given.minutes
    for name, size, sides, row in choose(given.only, given.peers, given.rows, given.rounds):
        if time.monotonic() > end:
            return
        job, rounds, before = JOBS[name], given.rounds or JOBS[name].rounds, count_rounds(row.get("sides", {}))
        row |= {"job": name, "size": size, "version": job.version}
        try:
            measure(job, size, sides, rounds, row, end)
        finally:
            found = row.get("sides", {})
            is_longer = bool(job.score) and len(found) == len(sides) and count_rounds(found) > before
            if is_longer or is_complete(row, sides, rounds):
                json_rows.append_row(given.rows, row)
        for label, of in found.items():
            said = f"{statistics.mean(of['wall']):.3f} s" if of.get("wall") else "no round"
            print(f"{name} {size}, {label}: {of.get('error', said)}", flush=True)


if __name__ == "__main__":
    main()
