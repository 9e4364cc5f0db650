"""Kill processes of a distributed training at random moments, resume it in other numbers, and compare it with one run.

python scripts/trust/process_kills.py [--kills 20] [--seed 0] [OPTION ...]

The training runs in 1, 4, 2, 1, 4, ... processes with four devices in all. At a random moment, one of them gets
SIGKILL; the others must end within a minute, and say which one has died unless it was the first. The next number of
processes resumes the run. At the end it must have the checksums of state and best policies of an undisturbed run in one
process, and its rows, whose means over members may differ by rounding. This needs a training whose devices exchange no
sums, such as PBT, since the order of a sum depends on the number of processes. Checkpoints are written all the time, so
that many kills fall into a save.
"""

import argparse
import itertools
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from faults import ending

COUNTS, DEVICES = (1, 4, 2), 4
MEMBER = "agent.inner.workflow"
DEFAULT = [
    *("agent=pbt", "env=cartpole", "agent.workflow.population.size=4", "agent.workflow.steps_per_generation=2"),
    *(f"{MEMBER}.num_envs=4", f"{MEMBER}.num_steps=32", f"{MEMBER}.batch_size=64", f"{MEMBER}.eval_episodes=4"),
    *("env.max_episode_steps=50", "chunk=1", "evaluations=20", "iterations=200"),
]
ALWAYS = [f"devices={DEVICES}", "checkpoint.minutes=0.01", "tensorboard=false"]


def start(count: int, options: list[str]) -> list[subprocess.Popen[str]]:
    """Start the processes of a training."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    several = [[f"distributed=localhost:{port},{count},{i}"] if count > 1 else [] for i in range(count)]
    command, pipe = [sys.executable, "-m", "evorl.train", *options], subprocess.PIPE
    return [subprocess.Popen([*command, *own], text=True, stdout=pipe, stderr=pipe) for own in several]


def finish(started: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Wait for all processes, and return their exit codes and what they wrote to stderr."""
    said = [process.communicate()[1] for process in started]
    return [(process.returncode, text) for process, text in zip(started, said, strict=True)]


def count_rows(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def is_equal(found: Any, whole: Any) -> bool:
    """Return whether two values are equal; numbers in rows may be means over members, whose sums differ in order."""
    if isinstance(whole, dict):
        return found.keys() == whole.keys() and all(is_equal(found[name], whole[name]) for name in whole)
    if isinstance(whole, list):
        return len(found) == len(whole) and all(map(is_equal, found, whole))
    if isinstance(whole, str) and whole.replace(".", "").replace("-", "").replace("e", "").isdigit():
        found, whole = float(found), float(whole)
    return math.isclose(found, whole, rel_tol=1e-5) if isinstance(whole, float) else found == whole


def kill_one(started: list[subprocess.Popen[str]], run: Path, moment: random.Random) -> tuple[int, float]:
    """Kill one process some time after the first new row; return which, and the seconds until all have ended."""
    before = count_rows(run)
    while count_rows(run) <= before and all(process.poll() is None for process in started):
        time.sleep(0.05)
    time.sleep(moment.uniform(0, 4))
    if any(process.poll() is not None for process in started):
        sys.exit(f"a process ended by itself: {[text[-800:] for _, text in finish(started)]}")
    victim = moment.randrange(len(started))
    started[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    for process in started:
        process.wait()
    return victim, time.monotonic() - killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", default=DEFAULT)
    given = parser.parse_args()
    moment, folder = random.Random(given.seed), Path(tempfile.mkdtemp())
    run, problems = folder / "killed", []
    print("| processes | killed | seconds until all have ended | message | rows |\n|---|---|---|---|---|")
    try:
        for kill, count in zip(range(given.kills), itertools.cycle(COUNTS), strict=False):
            begins = [*given.overrides, f"run_dir={run}"] if not kill else [f"resume={run}"]
            started = start(count, [*begins, *ALWAYS])
            victim, seconds = kill_one(started, run, moment)
            said = finish(started)
            told = next((line for _, text in said for line in text.splitlines() if "has died" in line), "")
            if victim and f"process {victim} on {os.uname().nodename} has died" not in told:
                problems.append(f"kill {kill}: not told: {said[0][1][-300:]}")
            if seconds > 60 or any(code == 0 for code, _ in said):
                problems.append(f"kill {kill}: {seconds:.0f} s, exit codes {[code for code, _ in said]}")
            print(f"| {count} | {victim} | {seconds:.1f} | {told.partition(';')[0]} | {count_rows(run)} |", flush=True)
        codes: Any = (
            finish(start(1, [f"resume={run}", *ALWAYS])),
            finish(start(1, [*given.overrides, f"run_dir={folder / 'whole'}", *ALWAYS])),
        )
        problems += [f"not finished: {text[-500:]}" for ((code, text),) in codes if code]
        found, whole = ending(run), ending(folder / "whole")
        problems += [
            f"differs from an undisturbed run: {name}" for name in whole if not is_equal(found[name], whole[name])
        ]
        print(f"\n{given.kills} kills, {len(whole['rows'])} rows: {'; '.join(problems) or 'nothing lost'}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
