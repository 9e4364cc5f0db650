"""Mutation testing: change one line of the package at a time, and see whether the tests that run it fail.

python scripts/trust/mutants.py list                                          prints the mutants of the current tree
python scripts/trust/mutants.py record --data DATA --jobs 2 [tests/test_x.py ...]   copies the tree, and records which
                                                                              test runs which line, in how many seconds
python scripts/trust/mutants.py run --data DATA --out FILE --jobs 2           tests the mutants; run again, it continues

Needs pytest-cov. A mutant runs the tests that executed its line while they were recorded; without any, those that
executed its function, or else its file. The other tests of the same files follow, because they may share a compiled
function or a fixture. The files with the quickest tests come first. Mutants are written to temporary copies only.

A test that fails on a mutant must pass on the unmutated copy. A mutant that exceeds its time counts as caught. A
survivor whose statement no test ran is listed with the tests of its function or file. Coverage does not reach into
processes that a test starts.
"""

import argparse
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mutation_sites import Site, draw_sites, find_all_sites, mutate

ROOT = Path(__file__).resolve().parents[2]
UNCOPIED = (".git", "__pycache__", ".*cache", ".hypothesis", ".venv", "*.egg-info", "runs", "build", "dist")
GRACE, SLOWDOWN = 120, 4  # seconds to start pytest, and how much longer than recorded its tests may take
CAUGHT, SURVIVED, UNCOVERED, UNSOUND = "caught", "SURVIVED", "not covered", "fails unmutated"
PLACES = ("statement", "function", "file")


@dataclass(frozen=True)
class Case:
    """A test as pytest's report has it."""

    name: str  # as pytest's command line takes it, or the file that could not be collected
    seconds: float
    outcome: str  # "passed", "failed" or "skipped"


def copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(*UNCOPIED))


def run_pytest(tree: Path, data: Path, report: Path, options: list[str], timeout: float | None = None) -> int | None:
    """Run pytest in a copy of the tree; return its exit code, or None if it took too long."""
    own = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "COVERAGE_FILE": str(data / "coverage")}
    own |= {"JAX_COMPILATION_CACHE_DIR": str(data / "programs"), "COVERAGE_CORE": "ctrace"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *options]
    with (data / f"{tree.name}.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=tree, env=os.environ | own, stdout=log, stderr=log, start_new_session=True
        )
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def read_report(tree: Path, report: Path) -> Iterator[Case]:
    """Yield the tests in a report of pytest."""
    if not report.exists():
        return
    for case in ElementTree.parse(report).iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        parts = [*filter(None, case.attrib["classname"].split(".")), case.attrib["name"]]
        files = ["/".join(parts[:n]) + ".py" for n in range(1, len(parts))]
        n = next((n for n, file in enumerate(files, 1) if (tree / file).is_file()), 0)
        name = "::".join([files[n - 1], *parts[n:]]) if n else "/".join(parts[-1].split(".")) + ".py"
        yield Case(name, float(case.attrib["time"]), outcome)


def record_coverage(arguments: argparse.Namespace) -> int:
    """Copy the tree, and record which tests run which lines, and how long they take."""
    data = arguments.data.resolve()
    if data.exists():
        sys.exit(f"{data} exists; choose another folder")
    data.mkdir(parents=True)
    copy_tree(arguments.root, data / "tree")
    (data / "coveragerc").write_text("[run]\nrelative_files = true\n", encoding="utf-8")
    cover = [f"--cov={arguments.package}", f"--cov-config={data / 'coveragerc'}", "--cov-context=test", "--cov-report="]
    workers = ["-n", str(arguments.jobs), "--dist", "worksteal"] if arguments.jobs > 1 else []
    marker = ["-m", arguments.marker] if arguments.marker else []
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(data / "tree", Path(folder) / "tree")
        options = [*cover, *workers, *marker, *arguments.tests]
        code = run_pytest(Path(folder) / "tree", data, data / "times.xml", options)
    failed = [case.name for case in read_report(data / "tree", data / "times.xml") if case.outcome == "failed"]
    print(f"pytest ended with {code}: {data / 'tree.log'}", *failed, sep="\nfailed, and not used: " if failed else "")
    return code or 0


class Selection:
    """The tests for each site, from what was recorded."""

    def __init__(self, data: Path) -> None:
        from coverage import CoverageData

        found = read_report(data / "tree", data / "times.xml")
        self.seconds = {case.name: case.seconds for case in found if case.outcome == "passed"}
        self._coverage = CoverageData(str(data / "coverage"))
        self._coverage.read()

    def find_covering(self, site: Site) -> tuple[set[str], str]:
        """Return the tests that ran the narrowest place around a site that any test ran, and what that place is."""
        contexts = self._coverage.contexts_by_lineno(site.file)
        for place, kind in zip(site.places, PLACES[-len(site.places) :], strict=True):
            lines = {line for first, last in place for line in range(first, last + 1)}
            found = {name.rpartition("|")[0] for line in lines & contexts.keys() for name in contexts[line]}
            if found & self.seconds.keys():
                return found & self.seconds.keys(), kind
        return set(), "none"

    def sort_tests(self, first: set[str]) -> list[str]:
        """Return tests, and then the others of the same files, in the order in which to run them."""
        files = {name.partition("::")[0] for name in first}
        others = {name for name in self.seconds if name.partition("::")[0] in files} - first
        return self._sort_by_file(first) + self._sort_by_file(others)

    def fit_budget(self, names: list[str], budget: float) -> list[str]:
        """Return the first tests, at least one, that fit into a budget of seconds."""
        spent = itertools.accumulate(self.seconds[name] for name in names)
        return names[: max(1, sum(x <= budget for x in spent))]

    def _sort_by_file(self, names: set[str]) -> list[str]:
        """Sort tests by the seconds of their files, then by their own: JAX's caches are cleared between files."""
        totals: dict[str, float] = defaultdict(float)
        for name in names:
            totals[name.partition("::")[0]] += self.seconds[name]

        def rank(name: str) -> tuple[float, str, float, str]:
            file = name.partition("::")[0]
            return totals[file], file, self.seconds[name], name

        return sorted(names, key=rank)


@contextmanager
def patch_file(path: Path, text: str) -> Iterator[None]:
    """Write a text to a file, and restore the file at the end."""
    original = path.read_bytes()
    path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        path.write_bytes(original)


def run_mutant(
    site: Site, tree: Path, data: Path, selection: Selection, budget: float, marker: list[str]
) -> dict[str, Any]:
    """Test one mutant in a copy of the tree."""
    started, report = time.perf_counter(), tree.with_suffix(".xml")
    covering, place = selection.find_covering(site)
    ordered = selection.sort_tests(covering)
    chosen, path = selection.fit_budget(ordered, budget), tree / site.file
    status, by = UNCOVERED, ""
    limit = GRACE + SLOWDOWN * sum(selection.seconds[name] for name in chosen)
    if chosen:
        report.unlink(missing_ok=True)
        with patch_file(path, mutate(path.read_text(encoding="utf-8"), site)):
            code = run_pytest(tree, data, report, ["-x", *marker, *chosen], limit)
        failed = [case.name for case in read_report(tree, report) if case.outcome == "failed"]
        status = SURVIVED if code == 0 else CAUGHT
        if status == CAUGHT:
            by = "time" if code is None else failed[0] if failed else f"exit code {code}"
            again = failed[:1] if failed and "::" in failed[0] else [*chosen, "--collect-only"]
            if code is not None and run_pytest(tree, data, report, [*marker, *again], limit) != 0:
                status = UNSOUND
    row = dict(zip(("file", "line", "column", "operator"), site.name, strict=True))
    row |= {"before": site.before, "after": site.after, "status": status, "by": by, "place": place}
    row |= {"covering": len(covering), "run": len(chosen), "left": len(ordered) - len(chosen)}
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def select_sites(root: Path, arguments: argparse.Namespace) -> list[Site]:
    found = find_all_sites(root, arguments.package)
    return draw_sites([site for site in found if site.file.startswith(arguments.only)], arguments.count, arguments.seed)


def run_mutants(arguments: argparse.Namespace) -> int:
    """Test the mutants that --out does not have yet; print all of them."""
    data, out = arguments.data.resolve(), arguments.out
    drawn = select_sites(data / "tree", arguments)
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    rows = {(row["file"], row["line"], row["column"], row["operator"]): row for row in map(json.loads, lines)}
    selection, marker = Selection(data), ["-m", arguments.marker] if arguments.marker else []
    copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, out.open("a", encoding="utf-8") as file:
        for i in range(arguments.jobs):
            copy_tree(data / "tree", Path(folder) / f"worker{i}")
            copies.put(Path(folder) / f"worker{i}")

        def one(site: Site) -> None:
            tree = copies.get()
            try:
                rows[site.name] = row = run_mutant(site, tree, data, selection, arguments.budget, marker)
            finally:
                copies.put(tree)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{row['status']}  {site}  {row['by']}", file=sys.stderr, flush=True)

        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(one, [site for site in drawn if site.name not in rows]))
    print(format_table([rows[site.name] for site in drawn]))
    return 0


def format_table(rows: list[dict[str, Any]]) -> str:
    """Return the mutants, and their totals by folder, as Markdown."""
    lines = ["| place | operator | change | caught by | seconds |", "|---|---|---|---|---|"]
    for row in rows:
        change, by = f"`{row['before']}` to `{row['after']}`", row["by"]
        if row["status"] != CAUGHT:
            by = f"{row['status']} {by}".strip()
        if row["status"] == SURVIVED:
            by += f": {row['run']} tests pass, {row['covering']} run its {row['place']}, {row['left']} left out"
        cells = [f"{row['file']}:{row['line']}", row["operator"], change, by, f"{row['seconds']:.0f}"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    kinds = (CAUGHT, SURVIVED, UNCOVERED, UNSOUND)
    counts = Counter((folder, row["status"]) for row in rows for folder in (str(Path(row["file"]).parent), "all"))
    lines += ["", f"| folder | {' | '.join(kinds)} |", "|---|" + "---|" * len(kinds)]
    for folder in [*sorted({str(Path(row["file"]).parent) for row in rows}), "all"]:
        lines.append(f"| {folder} | {' | '.join(str(counts[folder, kind]) for kind in kinds)} |")
    return "\n".join(lines)


def list_mutants(arguments: argparse.Namespace) -> int:
    """Print the mutants of the current tree."""
    print(*select_sites(arguments.root, arguments), sep="\n")
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for function, name in ((list_mutants, "list"), (record_coverage, "record"), (run_mutants, "run")):
        command = commands.add_parser(name, help=function.__doc__)
        command.set_defaults(function=function)
        command.add_argument("--package", default="evorl")
        if name != "run":
            command.add_argument("--root", type=Path, default=ROOT, help="the folder that holds package and tests")
        if name != "record":
            command.add_argument("--count", type=int, default=60)
            command.add_argument("--seed", type=int, default=0)
            command.add_argument("--only", default="", help="a file or folder; by default the whole package")
        if name != "list":
            command.add_argument("--data", type=Path, required=True, help="a folder for the copy and the recordings")
            command.add_argument("--jobs", type=int, default=1)
            command.add_argument("--marker", help="pytest's -m; by default what the project's addopts say")
    commands.choices["record"].add_argument("tests", nargs="*", help="files of tests; by default all")
    commands.choices["run"].add_argument("--out", type=Path, required=True, help="a file of results, one JSON a line")
    commands.choices["run"].add_argument("--budget", type=float, default=300, help="recorded seconds of tests a mutant")
    arguments = parser.parse_args()
    sys.exit(arguments.function(arguments))


if __name__ == "__main__":
    main()
