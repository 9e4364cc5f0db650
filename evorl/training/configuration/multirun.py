"""Multiruns: sequential runs, each in a folder named after its overrides, with a table at the end."""

import contextlib
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from evorl.errors import require
from evorl.training.records.rows import read_evaluations

MAX_NAME_LENGTH = 100  # characters of a folder name
STOP_CODE = 130  # exit code of a stopped run
OUTCOMES = {0: "", 1: "failed", 2: "refused", STOP_CODE: "stopped"}


def run_jobs(
    jobs: Sequence[list[str]],
    cfgs: Sequence[Any],
    parent: Path,
    train: Callable[[list[str]], None],
    tell: Callable[[str], None],
) -> None:
    """Train every job, pass the table of runs to `tell`, and exit with the first nonzero exit code.

    A job that is stopped ends the multirun.
    """
    places, codes = choose_folders(jobs, cfgs, parent), []
    for job, cfg, place in zip(jobs, cfgs, places, strict=True):
        given = [] if cfg.resume else [f"run_dir={quote_run_dir(place)}"]
        codes.append(_run_job(train, [one for one in job if not one.startswith("run_dir=")] + given))
        if codes[-1] == STOP_CODE:
            break
    if any(place.is_dir() for place in places):
        tell(format_run_table(jobs, places, codes))
    else:
        with contextlib.suppress(OSError):  # they may be missing or contain other runs
            places[0].parent.rmdir()
            parent.parent.rmdir()
    sys.exit(next(filter(None, codes), 0))


def quote_run_dir(place: Path) -> str:
    """Return a folder as the value of an option, quoted as the command line needs it."""
    return QuotedString(str(place), Quote.single).with_quotes()


def run_in_process(arguments: list[str]) -> None:
    """Train in a separate process and forward signals to it; exit with its exit code if that is not 0."""
    child = subprocess.Popen([sys.executable, "-m", "evorl.train", *arguments], start_new_session=True)
    hand_on = lambda number, frame: child.send_signal(number)  # noqa: E731
    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code:
        sys.exit(code)


def _run_job(train: Callable[[list[str]], None], job: list[str]) -> int:
    try:
        train(job)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def choose_folders(jobs: Sequence[list[str]], cfgs: Sequence[Any], parent: Path) -> list[Path]:
    """Return the folder of each job: the given run_dir or resumed run, or a new folder in run_dir or `parent`."""
    own = [cfg.resume or cfg.run_dir for cfg in cfgs]
    if all(own) and (cfgs[0].resume or len(set(own)) > 1):
        return [Path(place) for place in own]
    place = Path(cfgs[0].run_dir) if cfgs[0].run_dir else parent
    require(not place.exists(), "run_dir", place, "exists already")
    return [place / name for name in name_folders(jobs)]


def name_folders(jobs: Sequence[list[str]]) -> list[str]:
    """Return a folder name for each job, made of the overrides in which jobs differ, such as agent-td3+seed-1.

    The names are short and unique, and need no quotes in a shell or on the command line of evorl.
    """
    found = []
    for job in _find_differing_overrides(jobs):
        parts = (f"{key.rpartition('.')[2]}-{value}" for key, value in job.items())
        found.append(re.sub(r"[^A-Za-z0-9._+-]+", "_", "+".join(parts))[:MAX_NAME_LENGTH].strip("._+-") or "run")
    if len({name.lower() for name in found}) < len(found):
        found = [f"{i}+{name}" for i, name in enumerate(found)]
    return found


def _find_differing_overrides(jobs: Sequence[list[str]]) -> list[dict[str, str]]:
    """Return for each job the overrides in which jobs differ, or all overrides if the jobs are equal."""
    places = [i for i in range(len(jobs[0])) if len({job[i] for job in jobs}) > 1] or range(len(jobs[0]))
    parted = [[job[i].partition("=") for i in places] for job in jobs]
    return [{key: value for key, _, value in job} for job in parted]


def format_run_table(jobs: Sequence[list[str]], places: Sequence[Path], codes: Sequence[int]) -> str:
    """Format the runs as a Markdown table: their overrides, best and last return, minutes, and failures."""
    swept = _find_differing_overrides(jobs)
    lines = [["run", *swept[0], "best return", "last return", "minutes", ""]]
    for job, place, code in zip(swept, places, codes, strict=False):
        rows = read_evaluations(place)
        returns = [row["return"] for row in rows if math.isfinite(row["return"])]
        numbers = [f"{max(returns):.1f}", f"{returns[-1]:.1f}"] if returns else ["", ""]
        minutes = f"{rows[-1]['seconds'] / 60:.1f}" if rows else ""
        lines.append([str(place), *job.values(), *numbers, minutes, OUTCOMES.get(code, "failed")])
    lines = [line if any(codes) else line[:-1] for line in lines]
    lines.insert(1, ["---"] * len(lines[0]))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"| {' | '.join(f'{cell:{width}}' for cell, width in zip(line, widths, strict=True))} |" for line in lines
    )
